#include "cli/launch/interrupt_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"

namespace trellis::cli {
namespace {

constexpr std::chrono::milliseconds kLaterFiles(50);

sigset_t interrupts() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  return set;
}

}  // namespace

InterruptWatch::InterruptWatch() {
  const sigset_t set = interrupts();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

InterruptWatch::~InterruptWatch() {
  thread_.request_stop();
  thread_.join();
  const sigset_t set = interrupts();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void InterruptWatch::owns(Remove remove) {
  const std::lock_guard lock(mutex_);
  remove_ = std::move(remove);
}

void InterruptWatch::watch(const std::stop_token& stop) {
  const sigset_t set = interrupts();
  const timespec moment{0, 20'000'000};
  while (!stop.stop_requested()) {
    if (sigtimedwait(&set, nullptr, &moment) < 0) continue;
    const std::lock_guard lock(mutex_);
    // The other threads go on until the process ends: what they were about to create appears
    // meanwhile.
    while (remove_ && remove_()) std::this_thread::sleep_for(kLaterFiles);
    constexpr std::string_view kText = "interrupted: nothing of this run is kept\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText.data(), kText.size());
    ::_exit(
        static_cast<int>(ExitCode::kInterrupted));  // no destructors: the other threads are at work
  }
}

}  // namespace trellis::cli
