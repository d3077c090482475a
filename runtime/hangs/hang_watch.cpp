#include "runtime/hangs/hang_watch.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"
#include "runtime/hangs/native_stack.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

constexpr std::chrono::milliseconds kInterval{50};
/// For Python's code to write stacks itself: it looks every 20 ms.
constexpr std::chrono::milliseconds kPythonPatience{2000};

// A signal handler may only touch a lock-free flag.
std::atomic<unsigned> pictures_asked{0};
static_assert(std::atomic<unsigned>::is_always_lock_free);

std::string stack_of(const Rendezvous::Whereabouts& rank) {
  std::string text = "  native stack, innermost first:\n";
  const std::vector<std::string> stack = native_stack(rank.thread);
  for (const std::string& frame : stack) text += "    " + frame + "\n";
  return stack.empty() ? text + "    (its thread does not answer)\n" : text;
}

std::string report(const Rendezvous::Overdue& overdue) {
  std::string text = "error: " + overdue.cause + "\n";
  for (const Rendezvous::Whereabouts& rank : overdue.ranks) {
    text += "rank " + std::to_string(rank.rank) + " goes on all the same: it " + rank.text + "\n" +
            stack_of(rank);
  }
  return text;
}

std::string picture(const std::vector<Rendezvous::Whereabouts>& ranks) {
  std::string text = "what each rank does:\n";
  for (const Rendezvous::Whereabouts& rank : ranks) {
    text += "rank " + std::to_string(rank.rank) +
            (rank.step < 0 ? ", before the first step" : ", step " + std::to_string(rank.step)) +
            ": it " + rank.text + "\n" + stack_of(rank);
  }
  return ranks.empty() ? text + "none runs\n" : text;
}

}  // namespace

void request_picture() { pictures_asked.fetch_add(1, std::memory_order_relaxed); }

HangWatch::HangWatch(std::shared_ptr<Rendezvous> rendezvous, Options options)
    : rendezvous_(std::move(rendezvous)),
      options_(std::move(options)),
      dump_(options_.dump),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void HangWatch::ask_for_python_stacks() const {
  if (options_.python_signal == 0) return;
  const auto until = Clock::now() + kPythonPatience;
  while (!has_python_stacks_ && Clock::now() < until) std::this_thread::sleep_for(kInterval);
  if (!has_python_stacks_) pthread_kill(pthread_self(), options_.python_signal);
}

void HangWatch::watch(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  unsigned pictures = pictures_asked;
  while (!wake.wait_for(lock, stop, kInterval, [&] { return stop.stop_requested(); })) {
    dump_.poll();
    const auto silent =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_beat_.load());
    if (options_.python_signal != 0 && silent > rendezvous_->timeout()) {
      rendezvous_->declare_hang(
          "communication hang: no rank could run Python's code for the timeout: native code holds "
          "Python's lock\n"
          "  what to do: release the lock in that code (see the stacks), or give slow ranks a "
          "longer timeout");
    }
    if (const unsigned asked = pictures_asked; asked != pictures) {
      pictures = asked;
      write_to_stderr(picture(rendezvous_->whereabouts()));
    }
    const auto overdue = rendezvous_->overdue();
    if (!overdue) continue;
    write_to_stderr(report(*overdue) + dump_.lines());
    ask_for_python_stacks();
    if (options_.exit) ::_exit(static_cast<int>(overdue->code));
    return;
  }
}

}  // namespace trellis::runtime
