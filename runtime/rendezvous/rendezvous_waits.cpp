// How a rank waits, and finds out that it waits for nothing: the part of Rendezvous that blocks.
#include <algorithm>
#include <thread>

#include "base/error.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

using std::chrono::milliseconds;

/// Until other processes are asked for the first time what they do; then twice as long each time.
constexpr milliseconds kFirstPause{200};
constexpr milliseconds kLongestPause{10000};
constexpr milliseconds kLookPause{250};

constexpr const char* kNoneLeft = "  every rank waits or has ended: no one could still arrive\n";
constexpr const char* kDeparted = "  a missing rank has ended: it cannot arrive any more\n";

/// While it lives a rank waits for a transfer. Made and destroyed under the lock.
class Waiting {
 public:
  Waiting(const Transfer*& place, const Transfer& transfer) : place_(place) { place = &transfer; }
  ~Waiting() { place_ = nullptr; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const Transfer*& place_;
};

}  // namespace

void Rendezvous::wait(int rank, Transfer& transfer, milliseconds timeout) {
  with_records([&] { wait_for(rank, transfer, timeout); });
}

void Rendezvous::throw_with_records(const Error& error) {
  is_notified_ = true;
  // Both sides of a mismatch learn of it; the others would wait for a hang's.
  if (is_over() && !is_announced_.exchange(true))
    announce_failure(running_.front(), error.what(), error.code());
  throw Error(error.code(), error.what() + ("\n" + program_->records()));
}

void Rendezvous::wait_for(int rank, Transfer& transfer, milliseconds timeout) {
  if (!transfer.done) {
    Lock lock(mutex_);
    check_caller(rank);
    timeout = std::min(timeout.count() == 0 ? timeout_ : timeout, kLongestPatience);
    if (!threads_.is_thread_of(seat(rank)))
      return wait_on_other_thread(lock, rank, transfer, timeout);
    const Waiting waiting(of(rank).waits_for, transfer);
    Patience patience{Clock::now(), timeout, link_ == nullptr ? timeout : kFirstPause};
    of(rank).waits_since = patience.began;
    auto deadline = patience.began + std::min(timeout, patience.pause);
    while (!transfer.done) {
      throw_if_cancelled();
      throw_section_error(rank);
      if (transfer.has_work()) {
        help(lock, static_cast<Exchange&>(transfer));  // only exchanges have work
        continue;
      }
      if (none_can_wake(rank)) throw_hang(rank, transfer, patience.began, kNoneLeft, doings_here());
      const std::vector<int> missing = missing_that_run(transfer);
      if (std::ranges::any_of(missing, [this](int other) { return has_departed(other); }))
        throw_hang(rank, transfer, patience.began, kDeparted, doings_here());
      transfer.waiting.push_back(rank);
      const bool woken = threads_.block(lock, seat(rank), deadline);
      std::erase(transfer.waiting, rank);
      if (woken || transfer.done || cancelled_) continue;
      deadline = look_around(lock, rank, transfer, patience);
    }
  }
  if (transfer.error) std::rethrow_exception(transfer.error);
}

/// A thread of a Program that is not the rank's.
void Rendezvous::wait_on_other_thread(Lock& lock, int rank, Transfer& transfer,
                                      milliseconds timeout) {
  constexpr milliseconds kLook{1};
  const auto began = Clock::now();
  while (!transfer.done) {
    throw_if_cancelled();
    if (transfer.has_work()) {
      help(lock, static_cast<Exchange&>(transfer));
      continue;
    }
    const std::vector<int> missing = missing_that_run(transfer);
    const bool departed =
        std::ranges::any_of(missing, [this](int other) { return has_departed(other); });
    if (departed || Clock::now() - began > timeout)
      throw_hang(rank, transfer, began, departed ? kDeparted : "", doings_here());
    lock.unlock();
    std::this_thread::sleep_for(kLook);
    lock.lock();
  }
  if (transfer.error) std::rethrow_exception(transfer.error);
}

/// When to look again: a missing rank is late when it has run for `timeout` without arriving. One
/// that waits for a permit or for others is not late itself.
Rendezvous::Clock::time_point Rendezvous::next_check(const Transfer& transfer,
                                                     Clock::time_point began,
                                                     milliseconds timeout) const {
  auto next = Clock::now() + timeout;
  for (int rank : missing_that_run(transfer)) {
    if (is_remote(rank)) {
      next = std::min(next, began + timeout);
      continue;
    }
    if (threads_.state(seat(rank)) != HostThreads::State::kRunning) continue;
    next = std::min(next, std::max(threads_.since(seat(rank)), began) + timeout);
  }
  return next;
}

Rendezvous::Clock::time_point Rendezvous::look_around(Lock& lock, int rank,
                                                      const Transfer& transfer,
                                                      Patience& patience) {
  const auto next = next_check(transfer, patience.began, patience.timeout);
  if (link_ == nullptr) {
    if (next > Clock::now()) return next;
    throw_hang(rank, transfer, patience.began, "", doings_here());
  }
  if (asks_) return Clock::now() + kLookPause;
  if (next <= Clock::now()) return ask_around(lock, rank, transfer, patience);
  asks_ = true;
  const bool stuck = none_can_go_on(lock);
  asks_ = false;
  if (stuck && !transfer.done && !cancelled_)
    throw_hang(rank, transfer, patience.began, kNoneLeft, last_doings_);
  patience.pause = std::min(2 * patience.pause, kLongestPause);
  return std::min(next, Clock::now() + patience.pause);
}

/// A missing rank may be late.
Rendezvous::Clock::time_point Rendezvous::ask_around(Lock& lock, int rank, const Transfer& transfer,
                                                     const Patience& patience) {
  asks_ = true;
  auto pictures = pictures_of_others(lock, true);
  asks_ = false;
  Doings doings = doings_here();
  for (auto& [process, picture] : pictures) doings.merge(picture.doings);
  const std::vector<int> missing = missing_that_run(transfer);
  const bool has_remote =
      std::ranges::any_of(missing, [this](int other) { return is_remote(other); });
  // The rank may have come while others answered.
  const bool goes_on = has_remote && !are_late(missing, doings, patience.timeout);
  if (transfer.done || cancelled_ || goes_on)
    return Clock::now() + std::min(kLookPause, patience.timeout);
  throw_hang(rank, transfer, patience.began, "", doings);
}

std::optional<std::map<int, Rendezvous::Picture>> Rendezvous::pictures_of_all(Lock& lock) {
  auto pictures = pictures_of_others(lock, false);
  pictures[link_->process()] = picture_here();
  for (int process = 0; process < link_->processes(); ++process) {
    if (!pictures.contains(process) && !processes_done_[static_cast<std::size_t>(process)])
      return std::nullopt;
  }
  return pictures;
}

/// No message is under way when for every two processes one has received what the other has sent,
/// in two pictures of all between which nothing moved (Mattern's four counters). The
/// messages of a process that has ended came before the news of its end.
bool Rendezvous::none_can_go_on(Lock& lock) {
  const auto only_wait = [](const std::map<int, Picture>& pictures) {
    return std::ranges::all_of(pictures, [](const auto& picture) {
      return std::ranges::all_of(picture.second.doings,
                                 [](const auto& doing) { return doing.second.only_waits; });
    });
  };
  const auto is_quiet = [](const std::map<int, Picture>& pictures) {
    for (const auto& [from, sender] : pictures) {
      for (const auto& [to, receiver] : pictures) {
        if (sender.sent[static_cast<std::size_t>(to)] !=
            receiver.received[static_cast<std::size_t>(from)])
          return false;
      }
    }
    return true;
  };
  if (!only_wait({{link_->process(), picture_here()}})) return false;
  const auto before = pictures_of_all(lock);
  if (!before || !only_wait(*before) || !is_quiet(*before)) return false;
  const auto after = pictures_of_all(lock);
  if (!after || !only_wait(*after) || !is_quiet(*after) || before->size() != after->size())
    return false;
  last_doings_.clear();
  for (const auto& [process, picture] : *after) {
    const Picture& earlier = before->at(process);
    if (picture.sent != earlier.sent || picture.received != earlier.received) return false;
    last_doings_.insert(picture.doings.begin(), picture.doings.end());
  }
  return true;
}

bool Rendezvous::are_late(const std::vector<int>& missing, const Doings& doings,
                          milliseconds timeout) const {
  using State = HostThreads::State;
  constexpr milliseconds kInFlight{1000};  ///< longer than a message is under way
  const auto is_late = [&](int rank) {
    const auto doing = doings.find(rank);
    if (doing == doings.end() || doing->second.state == State::kEnded) return true;
    return doing->second.state != State::kBlocked && doing->second.state != State::kReady &&
           doing->second.since >= timeout;
  };
  if (std::any_of(missing.begin(), missing.end(), is_late)) return true;
  return std::all_of(doings.begin(), doings.end(), [&](const auto& each) {
    const Doing& doing = each.second;
    return doing.state == State::kEnded ||
           (doing.state == State::kBlocked && doing.since >= std::min(kInFlight, timeout));
  });
}

}  // namespace trellis::runtime
