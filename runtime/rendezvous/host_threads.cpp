#include "runtime/rendezvous/host_threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <numeric>

namespace trellis::runtime {
namespace {

/// A rank that is ready for longer has waited for its turn long enough.
constexpr std::chrono::milliseconds kReusePatience{1};

}  // namespace

HostThreads::Signal::Signal() { sem_init(&given_, 0, 0); }
HostThreads::Signal::~Signal() { sem_destroy(&given_); }

void HostThreads::Signal::give() { sem_post(&given_); }

void HostThreads::Signal::take() {
  while (sem_wait(&given_) != 0) {  // interrupted
  }
}

bool HostThreads::Signal::take_until(Clock::time_point deadline) {
  const auto since_boot = deadline.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
  const timespec until{seconds.count(), std::chrono::nanoseconds(since_boot - seconds).count()};
  int result = 0;
  do result = sem_clockwait(&given_, CLOCK_MONOTONIC, &until);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

HostThreads::HostThreads(int ranks, int permits)
    : ranks_(static_cast<std::size_t>(ranks)), free_permits_(permits) {}

void HostThreads::set(int rank, State state) {
  of(rank).state = state;
  of(rank).since = Clock::now();
}

int HostThreads::take_ready(Caller caller) {
  auto taken = ready_.begin();
  if (Clock::now() - of(*taken).since < kReusePatience) {
    const int core = sched_getcpu();
    const auto suits = std::find_if(ready_.begin(), ready_.end(), [&](int rank) {
      return (of(rank).core == core) == (caller == Caller::kLeaves);
    });
    if (suits != ready_.end()) taken = suits;
  }
  const int rank = *taken;
  ready_.erase(taken);
  return rank;
}

std::vector<HostThreads::Rank*> HostThreads::give_permits(Caller caller) {
  std::vector<Rank*> begin;
  while (free_permits_ > 0 && !ready_.empty()) {
    const int rank = take_ready(caller);
    --free_permits_;
    set(rank, State::kRunning);
    begin.push_back(&of(rank));
  }
  return begin;
}

void HostThreads::dispatch(Caller caller) {
  for (Rank* rank : give_permits(caller)) rank->begin.give();
}

void HostThreads::enter(Lock& lock, int rank) {
  of(rank).thread = std::this_thread::get_id();
  of(rank).native = gettid();
  set(rank, State::kReady);
  ready_.push_back(rank);
  dispatch(Caller::kLeaves);
  lock.unlock();
  of(rank).begin.take();
  lock.lock();
}

void HostThreads::end(int rank) {
  set(rank, State::kEnded);
  ++free_permits_;
  dispatch(Caller::kLeaves);
}

bool HostThreads::block(Lock& lock, int rank, Clock::time_point deadline) {
  set(rank, State::kBlocked);
  of(rank).core = sched_getcpu();
  ++free_permits_;
  const std::vector<Rank*> begin = give_permits(Caller::kLeaves);
  lock.unlock();
  for (Rank* other : begin) other->begin.give();
  const bool runs = of(rank).begin.take_until(deadline);
  lock.lock();
  if (runs) return true;
  const bool woken = state(rank) != State::kBlocked;
  make_ready(rank);
  lock.unlock();
  of(rank).begin.take();
  lock.lock();
  return woken;
}

void HostThreads::make_ready(std::span<const int> ranks) {
  for (const int rank : ranks) {
    if (state(rank) != State::kBlocked) continue;
    set(rank, State::kReady);
    ready_.push_back(rank);
  }
  dispatch(Caller::kStays);
}

void HostThreads::make_all_ready() {
  std::vector<int> all(ranks_.size());
  std::iota(all.begin(), all.end(), 0);
  make_ready(all);
}

bool HostThreads::is_last_awake(int rank) const {
  for (int other = 0; other < ranks(); ++other) {
    const State s = state(other);
    if (other != rank && s != State::kBlocked && s != State::kEnded) return false;
  }
  return true;
}

}  // namespace trellis::runtime
