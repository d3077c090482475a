#include "runtime/hangs/crash.h"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

namespace trellis::runtime {
namespace {

constexpr std::array kCrashes = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
constexpr std::size_t kSignalStackBytes = 64 * 1024;
constexpr std::chrono::milliseconds kPollInterval{50};

// A signal handler may only touch lock-free flags and what was written before it was installed.
std::atomic<int> live_dumps{0};    // any
std::atomic<int> crash_signal{0};  // 0: none
std::atomic<bool> crash_recorded{false};
std::array<struct sigaction, kCrashes.size()> handlers_before{};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::mutex handlers_mutex;
int live_handlers = 0;

void wait_for_dump(int signal) {
  constexpr timespec kPause{0, 10'000'000};
  constexpr int kMostPauses = 200;
  if (live_dumps == 0) return;
  crash_signal = signal;
  for (int i = 0; i < kMostPauses && !crash_recorded; ++i) nanosleep(&kPause, nullptr);
}

void handle_crash(int signal, siginfo_t* info, void*) {
  wait_for_dump(signal);
  const auto index = std::find(kCrashes.begin(), kCrashes.end(), signal) - kCrashes.begin();
  sigaction(signal, &handlers_before[static_cast<std::size_t>(index)], nullptr);
  // A fault happens again when this returns, with its own address. A signal that was sent does not:
  // it is pending until then.
  if (info->si_code <= 0) raise(signal);
}

}  // namespace

CrashHandler::CrashHandler() {
  const std::lock_guard lock(handlers_mutex);
  if (live_handlers++ > 0) return;
  struct sigaction ours{};
  ours.sa_sigaction = handle_crash;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  for (std::size_t i = 0; i < kCrashes.size(); ++i) {
    sigaction(kCrashes[i], nullptr, &handlers_before[i]);
    sigaction(kCrashes[i], &ours, nullptr);
  }
}

CrashHandler::~CrashHandler() {
  const std::lock_guard lock(handlers_mutex);
  if (--live_handlers > 0) return;
  for (std::size_t i = 0; i < kCrashes.size(); ++i) {
    struct sigaction now{};
    sigaction(kCrashes[i], nullptr, &now);
    // Someone else's that came later stays.
    if (now.sa_sigaction == handle_crash) sigaction(kCrashes[i], &handlers_before[i], nullptr);
  }
}

SignalStack::SignalStack() {
  stack_t now{};
  if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
  void* const memory = mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t ours{memory, 0, kSignalStackBytes};
  if (sigaltstack(&ours, nullptr) == 0) {
    memory_ = memory;
  } else {
    munmap(memory, kSignalStackBytes);
  }
}

SignalStack::~SignalStack() {
  stack_t now{};
  if (memory_ == nullptr || sigaltstack(nullptr, &now) != 0 || now.ss_sp != memory_) return;
  const stack_t none{nullptr, SS_DISABLE, 0};
  if (sigaltstack(&none, nullptr) == 0) munmap(memory_, kSignalStackBytes);
}

CrashDump::CrashDump(std::function<std::string()> dump) : dump_(std::move(dump)) { ++live_dumps; }

CrashDump::~CrashDump() { --live_dumps; }

std::string CrashDump::lines() const {
  const std::string text = dump_ ? dump_() : "";
  return text.empty() ? "" : text + "\n";
}

/// The process ends when this returns: its signal's handler waits for it.
void CrashDump::poll() const {
  const int signal = crash_signal;
  if (signal == 0 || crash_recorded) return;
  write_to_stderr("error: the process crashes: signal " + std::to_string(signal) + ", " +
                  strsignal(signal) + "\n" + lines());
  crash_recorded = true;
}

CrashWatch::CrashWatch(std::function<std::string()> dump)
    : dump_(std::move(dump)), thread_([this](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (!wake.wait_for(lock, stop, kPollInterval, [&] { return stop.stop_requested(); }))
          dump_.poll();
      }) {}

void write_to_stderr(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<std::size_t>(written);
  }
}

}  // namespace trellis::runtime
