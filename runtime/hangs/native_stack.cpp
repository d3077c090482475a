#include "runtime/hangs/native_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string_view>

namespace trellis::runtime {
namespace {

constexpr int kMostFrames = 64;
constexpr std::chrono::milliseconds kStackPatience{200};

/// Where a signal handler writes: it can be given nothing, so this belongs to the process.
struct Answer {
  std::array<void*, kMostFrames> frames{};
  std::atomic<int> count{0};  ///< written last: whoever reads it sees `frames`
  sem_t written;
  std::atomic<bool> wanted{false};  ///< false: whoever asked has given up
};
Answer& answer() {
  static Answer* const one = [] {
    auto* made = new Answer;
    sem_init(&made->written, 0, 0);
    return made;
  }();
  return *one;
}

void write_down(int) {
  const int saved = errno;
  Answer& here = answer();
  if (here.wanted.exchange(false)) {
    here.count.store(backtrace(here.frames.data(), kMostFrames), std::memory_order_release);
    sem_post(&here.written);
  }
  errno = saved;
}

std::string describe(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  const std::string_view path = info.dli_fname;
  const std::string library(path.substr(path.rfind('/') + 1));
  if (info.dli_sname == nullptr) return "? (" + library + ")";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return std::string(status == 0 ? name.get() : info.dli_sname) + " (" + library + ")";
}

bool take_within(sem_t& semaphore, std::chrono::milliseconds patience) {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += std::chrono::nanoseconds(patience).count();
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  int result = 0;
  do result = sem_clockwait(&semaphore, CLOCK_MONOTONIC, &until);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

std::vector<std::string> native_stack(pid_t thread) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  Answer& here = answer();
  void* first_call_loads_the_unwinder = nullptr;
  backtrace(&first_call_loads_the_unwinder, 1);
  const int signal = SIGRTMAX - 4;
  struct sigaction ours{}, before{};
  ours.sa_handler = write_down;
  ours.sa_flags = SA_RESTART;
  sigaction(signal, &ours, &before);
  here.wanted = true;
  std::vector<std::string> lines;
  // It may have ended, which pthread_kill does not allow.
  if (syscall(SYS_tgkill, getpid(), thread, signal) != 0) return lines;
  // A handler that has taken the order by then will fulfil it.
  const bool answered = take_within(here.written, kStackPatience) ||
                        (!here.wanted.exchange(false) && take_within(here.written, kStackPatience));
  if (answered) {
    constexpr int kHandler = 2;  // the handler and the signal's own frame
    const int count = here.count.load(std::memory_order_acquire);
    for (int i = kHandler; i < count; ++i) {
      lines.push_back(describe(here.frames[static_cast<std::size_t>(i)]));
    }
  }
  // Without an answer the signal may be under way, and its default would end the process.
  if (answered) sigaction(signal, &before, nullptr);
  return lines;
}

}  // namespace trellis::runtime
