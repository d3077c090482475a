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

}  // namespace

StopOnSignal::StopOnSignal() {
  terminated = false;
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, handle);
  std::signal(SIGQUIT, print_picture);
}

StopOnSignal::~StopOnSignal() {
  for (int signal : {SIGINT, SIGTERM, SIGQUIT}) std::signal(signal, SIG_DFL);
}

bool StopOnSignal::was_terminated() const { return terminated; }

}  // namespace trellis::trainer
