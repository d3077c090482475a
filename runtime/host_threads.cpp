#include "runtime/host_threads.h"

namespace trellis::runtime {

HostThreads::HostThreads(int ranks, int permits) : ranks_(static_cast<std::size_t>(ranks)), free_permits_(permits) {}

void HostThreads::set(int rank, State state) {
  of(rank).state = state;
  of(rank).since = Clock::now();
}

void HostThreads::dispatch() {
  while (free_permits_ > 0 && !ready_.empty()) {
    const int rank = ready_.front();
    ready_.pop_front();
    --free_permits_;
    set(rank, State::kRunning);
    of(rank).wake.notify_one();
  }
}

void HostThreads::wait_for_permit(Lock& lock, int rank) {
  of(rank).wake.wait(lock, [&] { return state(rank) == State::kRunning; });
}

void HostThreads::enter(Lock& lock, int rank) {
  of(rank).thread = std::this_thread::get_id();
  set(rank, State::kReady);
  ready_.push_back(rank);
  dispatch();
  wait_for_permit(lock, rank);
}

void HostThreads::end(int rank) {
  set(rank, State::kEnded);
  ++free_permits_;
  dispatch();
}

bool HostThreads::block(Lock& lock, int rank, Clock::time_point deadline) {
  set(rank, State::kBlocked);
  ++free_permits_;
  dispatch();
  const bool woken =
      of(rank).wake.wait_until(lock, deadline, [&] { return state(rank) == State::kRunning || state(rank) == State::kReady; });
  make_ready(rank);
  wait_for_permit(lock, rank);
  return woken;
}

void HostThreads::make_ready(int rank) {
  if (state(rank) != State::kBlocked) return;
  set(rank, State::kReady);
  ready_.push_back(rank);
  dispatch();
}

void HostThreads::make_all_ready() {
  for (int rank = 0; rank < ranks(); ++rank) make_ready(rank);
}

bool HostThreads::is_last_awake(int rank) const {
  for (int other = 0; other < ranks(); ++other) {
    const State s = state(other);
    if (other != rank && s != State::kBlocked && s != State::kEnded) return false;
  }
  return true;
}

}  // namespace trellis::runtime
