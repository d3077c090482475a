#pragma once

#include <semaphore.h>
#include <sys/types.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace trellis::runtime {

/// Decides which rank threads run: at most `permits` at once, in the order in which they became
/// ready, except that a core which gets free goes on with a rank that it had before: moving one to
/// another core costs more than a small collective. A rank that waits for others gives its permit
/// away, so one host thread is enough for any number of ranks. Every method REQUIRES the world's
/// mutex
/// (`lock`) held.
class HostThreads {
 public:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  enum class State { kUnstarted, kReady, kRunning, kBlocked, kEnded };

  HostThreads(int ranks, int permits);

  /// The calling thread becomes `rank` and waits for a permit.
  void enter(Lock& lock, int rank);
  void end(int rank);
  /// Waits without a permit until make_ready(rank) or `deadline`; holds a permit again on return.
  /// False: the deadline passed.
  bool block(Lock& lock, int rank, Clock::time_point deadline);
  /// Lets a blocked rank run as soon as there is a permit; no effect on others.
  void make_ready(int rank) { make_ready(std::span(&rank, 1)); }
  void make_ready(std::span<const int> ranks);
  void make_all_ready();

  [[nodiscard]] State state(int rank) const { return of(rank).state; }
  /// Since when the rank runs, is blocked, …
  [[nodiscard]] Clock::time_point since(int rank) const { return of(rank).since; }
  /// True if no rank but `rank` could ever wake it: all others are blocked or have ended.
  [[nodiscard]] bool is_last_awake(int rank) const;
  [[nodiscard]] bool is_thread_of(int rank) const {
    return of(rank).thread == std::this_thread::get_id();
  }
  /// REQUIRES: the rank has entered.
  [[nodiscard]] pid_t native_thread(int rank) const { return of(rank).native; }
  [[nodiscard]] int ranks() const { return static_cast<int>(ranks_.size()); }

 private:
  /// Given once, taken once. Except for the world's mutex, which who is woken needs at once; and
  /// the system's own semaphore, because the standard library's spins before it sleeps, on a core
  /// that another rank could have.
  class Signal {
   public:
    Signal();
    ~Signal();
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    void give();
    void take();
    /// False: not given before `deadline`.
    bool take_until(Clock::time_point deadline);

   private:
    sem_t given_;
  };
  struct Rank {
    State state = State::kUnstarted;
    Clock::time_point since{};
    std::thread::id thread;
    pid_t native = 0;  ///< the system's number of the thread
    int core = -1;     ///< of the host, where it ran last
    Signal begin;      ///< given once each time the rank begins to run
  };
  /// kLeaves: the calling thread frees its core. kStays: it goes on running there.
  enum class Caller { kLeaves, kStays };
  void set(int rank, State state);
  int take_ready(Caller caller);
  /// Gives the free permits to ready ranks, which begin to run once they have their signals.
  std::vector<Rank*> give_permits(Caller caller);
  void dispatch(Caller caller);
  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Rank& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Rank> ranks_;
  std::deque<int> ready_;
  int free_permits_;
};

}  // namespace trellis::runtime
