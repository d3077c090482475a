#include "trainer/app/stop_on_signal.h"

#include <atomic>
#include <csignal>

#include "runtime/hang_watch.h"
#include "runtime/world.h"

namespace trellis::trainer {
namespace {

// A signal handler may only touch a lock-free flag.
std::atomic<bool> terminated{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void handle(int signal) {
  if (signal == SIGTERM) terminated = true;
  runtime::request_stop();
  std::signal(signal, SIG_DFL);
}

void print_picture(int) { runtime::request_picture(); }

constexpr int kCrashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};

void record_crash(int signal) {
  runtime::record_crash(signal);
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // pending until the handler returns
}

/// Sanitizers have their own handlers, which stay.
void replace(int signal, void (*from)(int), void (*to)(int)) {
  struct sigaction now{};
  if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == from) std::signal(signal, to);
}

}  // namespace

StopOnSignal::StopOnSignal() {
  terminated = false;
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, handle);
  std::signal(SIGQUIT, print_picture);
  for (int signal : kCrashes) replace(signal, SIG_DFL, record_crash);
}

StopOnSignal::~StopOnSignal() {
  for (int signal : {SIGINT, SIGTERM, SIGQUIT}) std::signal(signal, SIG_DFL);
  for (int signal : kCrashes) replace(signal, record_crash, SIG_DFL);
}

bool StopOnSignal::was_terminated() const { return terminated; }

}  // namespace trellis::trainer
