#include "trainer/app/prepare/stop_on_signal.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <csignal>

#include "runtime/hangs/hang_watch.h"
#include "runtime/rendezvous/stop_request.h"

namespace trellis::trainer {
namespace {

// A signal handler may only touch a lock-free flag.
std::atomic<bool> terminated{false};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::array kStops = {SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kStops.size()> stops_before{};

void restore() {
  for (std::size_t i = 0; i < kStops.size(); ++i) ::sigaction(kStops[i], &stops_before[i], nullptr);
}

/// The next one ends the process, whatever it does.
void handle(int signal) {
  if (signal == SIGTERM) terminated = true;
  runtime::request_stop();
  restore();
}

void print_picture(int) { runtime::request_picture(); }

}  // namespace

StopOnSignal::StopOnSignal() : picture_before_(std::signal(SIGQUIT, print_picture)) {
  terminated = false;
  struct sigaction ours{};
  ours.sa_handler = handle;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  for (std::size_t i = 0; i < kStops.size(); ++i) ::sigaction(kStops[i], nullptr, &stops_before[i]);
  for (std::size_t i = 0; i < kStops.size(); ++i) {
    if (stops_before[i].sa_handler != SIG_IGN) ::sigaction(kStops[i], &ours, nullptr);
  }
}

StopOnSignal::~StopOnSignal() {
  restore();
  std::signal(SIGQUIT, picture_before_);
}

bool StopOnSignal::was_terminated() const { return terminated; }

}  // namespace trellis::trainer
