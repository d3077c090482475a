#include "runtime/hang_watch.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "base/error.h"
#include "runtime/native_stack.h"
#include "runtime/rendezvous.h"

namespace trellis::runtime {
namespace {

constexpr std::chrono::milliseconds kInterval{50};

/// Straight to the descriptor: streams have locks that a stuck rank may hold.
void write_all(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<std::size_t>(written);
  }
}

std::string report(const Rendezvous::Overdue& overdue) {
  std::string text = "error: " + overdue.cause + "\n";
  for (const Rendezvous::Straggler& rank : overdue.ranks) {
    text += "rank " + std::to_string(rank.rank) + " goes on all the same: it " + rank.whereabouts +
            "\n";
    text += "  native stack, innermost first:\n";
    const std::vector<std::string> stack = native_stack(rank.thread);
    for (const std::string& frame : stack) text += "    " + frame + "\n";
    if (stack.empty()) text += "    (its thread does not answer)\n";
  }
  return text;
}

}  // namespace

HangWatch::HangWatch(std::shared_ptr<Rendezvous> rendezvous, Options options)
    : rendezvous_(std::move(rendezvous)),
      options_(options),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void HangWatch::watch(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, stop, kInterval, [&] { return stop.stop_requested(); })) {
    const auto silent =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_beat_.load());
    if (options_.python_signal != 0 && silent > rendezvous_->timeout()) {
      rendezvous_->declare_hang(
          "communication hang: no rank could run Python's code for the timeout: native code holds "
          "Python's lock\n"
          "  what to do: release the lock in that code (see the stacks), or give slow ranks a "
          "longer timeout");
    }
    const auto overdue = rendezvous_->overdue();
    if (!overdue) continue;
    write_all(report(*overdue));
    if (options_.python_signal != 0) pthread_kill(pthread_self(), options_.python_signal);
    if (options_.exit) ::_exit(static_cast<int>(overdue->code));
    return;
  }
}

}  // namespace trellis::runtime
