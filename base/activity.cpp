#include "base/activity.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <list>
#include <mutex>
#include <thread>

namespace trellis {

using Clock = std::chrono::steady_clock;

struct Activity::Entry {
  std::string what;
  std::int64_t done = -1, of = 0;  ///< −1: nothing is counted
  Clock::time_point since = Clock::now();
};

namespace {

constexpr std::chrono::milliseconds kSilence(1500);

std::string counted(std::int64_t done, std::int64_t of) {
  if (done < 0) return "";
  return ": " + std::to_string(done) + (of > 0 ? " of " + std::to_string(of) : "");
}

void write_line(const std::string& line) {
  [[maybe_unused]] const auto written = ::write(
      STDERR_FILENO, line.data(), line.size());  // one call: lines of other threads stay whole
}

}  // namespace

/// Everything that is going on, and the thread that says so.
class Activity::Board {
 public:
  Entry* add(std::string what) {
    const std::lock_guard lock(mutex_);
    entries_.emplace_back();
    entries_.back().what = std::move(what);
    if (entries_.size() == 1) start();
    return &entries_.back();
  }

  void remove(const Entry* entry) {
    if (::getpid() != process_) return;  // a fork has the entries, but not the thread
    std::jthread ended;                  // joined after the lock is open
    {
      const std::lock_guard lock(mutex_);
      entries_.remove_if([entry](const Entry& each) { return &each == entry; });
      if (entries_.empty()) ended = std::move(thread_);
    }
  }

  template <typename Change>
  void change(Change change_entry) {
    const std::lock_guard lock(mutex_);
    change_entry();
  }

  void note_written() { written_ = Clock::now(); }

 private:
  void start() {
    written_ = Clock::now();
    process_ = ::getpid();
    // Signals are for the threads that were there before.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const Clock::time_point next = written_.load() + kSilence;
      if (Clock::now() < next) {
        (void)wake_.wait_until(lock, stop, next, [] { return false; });
        continue;
      }
      if (!entries_.empty()) say(entries_.back());
      written_ = Clock::now();
    }
  }

  void say(const Entry& entry) const {
    if (entry.what.empty()) return;
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - entry.since).count();
    write_line("... " + entry.what + counted(entry.done, entry.of) + " (" +
               std::to_string(seconds) + " s)\n");
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::list<Entry> entries_;
  std::atomic<Clock::time_point> written_{Clock::now()};
  std::jthread thread_;
  pid_t process_ = 0;  ///< that the thread is of
};

/// Never destroyed: a process may end while an activity is under way.
Activity::Board& Activity::board() {
  static Board& instance = *new Board;
  return instance;
}

Activity::Activity(std::string what) : entry_(board().add(std::move(what))) {}

Activity::~Activity() { board().remove(entry_); }

void Activity::now(std::string what) {
  board().change([&] { *entry_ = {std::move(what)}; });
}

void Activity::count(std::int64_t done, std::int64_t of) {
  board().change([&] {
    entry_->done = done;
    entry_->of = of;
  });
}

void note_written() { Activity::board().note_written(); }

}  // namespace trellis
