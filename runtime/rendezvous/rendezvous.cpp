#include "runtime/rendezvous/rendezvous.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <system_error>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "runtime/rendezvous/stop_request.h"
#include "sim/collectives/outline.h"

namespace trellis::runtime {
namespace {

/// Bytes of one part of a movement: several members share the work of larger ones.
constexpr std::int64_t kPartBytes = 512 * 1024;
/// Distinct plans kept; more are made by workloads whose sizes never repeat.
constexpr std::size_t kKeptMovements = 512;

sim::CollectiveKind plan_kind(CommOp op) {
  using sim::CollectiveKind;
  switch (op) {
    case CommOp::kAllReduce:
    case CommOp::kReduce: return CollectiveKind::kAllReduce;
    case CommOp::kAllGather:
    case CommOp::kGather: return CollectiveKind::kAllGather;
    case CommOp::kReduceScatter: return CollectiveKind::kReduceScatter;
    case CommOp::kAllToAll: return CollectiveKind::kAllToAll;
    case CommOp::kBroadcast:
    case CommOp::kScatter: return CollectiveKind::kBroadcast;
    default: return CollectiveKind::kBarrier;
  }
}

bool is_even(const Exchange& exchange) {
  const std::int64_t split = exchange.sides[0]->input_splits[0];
  return std::all_of(exchange.sides.begin(), exchange.sides.end(),
                     [split](const std::optional<Side>& side) {
                       return std::all_of(side->input_splits.begin(), side->input_splits.end(),
                                          [split](std::int64_t s) { return s == split; });
                     });
}

/// True if the peer of a connection may have gone: Gloo throws other errors than LibTorch's, NCCL
/// c10::DistError.
bool may_be_a_lost_peer(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::DistError&) {
    return true;
  } catch (const c10::Error&) {
    return false;
  } catch (const Error&) {
    return false;
  } catch (const std::system_error&) {
    return false;
  } catch (const std::runtime_error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

Rendezvous::Rendezvous(std::vector<int> ranks, int permits, std::chrono::milliseconds timeout)
    : running_(std::move(ranks)),
      threads_(static_cast<int>(running_.size()), permits),
      timeout_(timeout),
      ranks_(running_.size()),
      store_(c10::make_intrusive<c10d::HashStore>()) {
  for (int rank : running_) host_group_ = &join("host", running_, rank);
}

Rendezvous::Rendezvous(std::vector<int> ranks, int permits, std::chrono::milliseconds timeout,
                       ProcessLink& link, std::vector<int> world)
    : running_(std::move(ranks)),
      threads_(static_cast<int>(running_.size()), permits),
      timeout_(timeout),
      ranks_(running_.size()),
      link_(&link),
      world_(std::move(world)),
      processes_done_(static_cast<std::size_t>(link.processes())),
      sent_to_(processes_done_.size()),
      received_from_(processes_done_.size()) {
  for (int rank : running_) {
    host_group_ = &join("host", world_, rank);
    process_group_ = &join("process", running_, rank);
  }
}

c10::intrusive_ptr<c10d::Store> Rendezvous::new_store() {
  return link_ == nullptr ? store_->clone() : link_->new_store();
}

int Rendezvous::member_of_world(int rank) const {
  return static_cast<int>(std::ranges::lower_bound(world_, rank) - world_.begin());
}

bool Rendezvous::has_departed(int rank) const {
  return is_remote(rank) && processes_done_[static_cast<std::size_t>(process_of(rank))];
}

int Rendezvous::seat(int rank) const {
  const auto place = std::lower_bound(running_.begin(), running_.end(), rank);
  return place == running_.end() || *place != rank ? -1
                                                   : static_cast<int>(place - running_.begin());
}

void Rendezvous::make_ready(const std::vector<int>& ranks) {
  std::vector<int> seats;
  for (int rank : ranks) {
    if (seat(rank) >= 0) seats.push_back(seat(rank));
  }
  threads_.make_ready(seats);
}

std::vector<int> Rendezvous::missing_that_run(const Transfer& transfer) const {
  std::vector<int> missing = transfer.missing();
  std::erase_if(missing, [this](int rank) { return !takes_part(rank); });
  return missing;
}

void Rendezvous::enter(int rank) {
  of(rank).scopes.enter();
  Lock lock(mutex_);
  threads_.enter(lock, seat(rank));
}

void Rendezvous::end(int rank) {
  of(rank).scopes.leave();
  Lock lock(mutex_);
  threads_.end(seat(rank));
  if (!none_can_wake(rank)) return;
  // Ranks that still wait would wait forever: one of them must wake to say so.
  for (int other = 0; other < threads_.ranks(); ++other) {
    if (threads_.state(other) == HostThreads::State::kBlocked) return threads_.make_ready(other);
  }
}

void Rendezvous::fail(int rank, std::exception_ptr cause) {
  std::string text = c10::str("rank ", rank, " failed");
  ExitCode code = ExitCode::kInternal;
  try {
    std::rethrow_exception(cause);
  } catch (const Cancelled&) {
    return;
  } catch (const Error& error) {
    text = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    text += c10::str(": ", error.what());
  } catch (...) {}
  {
    Lock lock(mutex_);
    of(rank).failure = std::move(cause);
    cancelled_ = true;
    world_is_over(text, code, rank);
    threads_.make_all_ready();
  }
  announce_failure(rank, text, code);
}

void Rendezvous::world_is_over(const std::string& cause, ExitCode code, int failed,
                               std::chrono::milliseconds grace) {
  if (link_ != nullptr) link_->stop_waiting();
  if (verdict_) return;
  // After a hang the others have waited long enough already; elsewhere they may still compute
  // before they notice.
  const std::chrono::milliseconds of_code =
      code == ExitCode::kHang ? std::chrono::milliseconds(kGrace) : timeout_;
  const auto patience = std::min(grace.count() > 0 ? grace : of_code, kLongestPatience);
  std::map<int, Now> now;
  for (const int rank : running_) now[rank] = now_of(rank);
  if (failed >= 0) now[failed].text = "failed: " + cause.substr(0, cause.find('\n'));
  verdict_ = Verdict{cause, code, Clock::now() + patience, std::move(now)};
}

void Rendezvous::declare_hang(const std::string& text) {
  const Lock lock(mutex_);
  world_is_over(text, ExitCode::kHang);
}

void Rendezvous::rethrow_first_failure() const {
  auto failures = remote_failures_;
  for (std::size_t seat = 0; seat < ranks_.size(); ++seat) {
    if (ranks_[seat].failure) failures[running_[seat]] = ranks_[seat].failure;
  }
  if (failures.empty()) return;
  const auto cause = std::ranges::find_if_not(
      failures, [](const auto& each) { return may_be_a_lost_peer(each.second); });
  std::rethrow_exception((cause == failures.end() ? failures.begin() : cause)->second);
}

void Rendezvous::begin_step(int rank, std::int64_t step) {
  Lock lock(mutex_);
  of(rank).step = step;
}

bool Rendezvous::stop_requested(int rank) {
  Lock lock(mutex_);
  if (cancelled_) return true;
  const std::int64_t query = of(rank).stop_queries++;
  if (stop_from_ < 0 && query > last_go_on_) {
    bool stops = runtime::stop_requested();
    if (link_ != nullptr) {
      lock.unlock();
      if (stops) link_->raise_flag("stop");
      stops = link_->first_answer("stop/" + std::to_string(query), link_->is_raised("stop"));
      lock.lock();
    }
    if (stops) {
      stop_from_ = query;
    } else {
      last_go_on_ = std::max(last_go_on_, query);
    }
  }
  return stop_from_ >= 0 && query >= stop_from_;
}

bool Rendezvous::agree(int rank, bool said) {
  Lock lock(mutex_);
  const std::size_t query = of(rank).agreements++;
  if (link_ != nullptr) {
    lock.unlock();
    return link_->first_answer("agree/" + std::to_string(query), said);
  }
  if (query == agreed_.size()) agreed_.push_back(said);
  return agreed_[query];
}

bool Rendezvous::has_failed() const { return cancelled_; }

bool Rendezvous::is_over() const {
  const Lock lock(mutex_);
  return verdict_.has_value();
}

std::int64_t Rendezvous::bytes_sent(int rank) const {
  Lock lock(mutex_);
  return of(rank).bytes_sent;
}

Rendezvous::Group& Rendezvous::join(const std::string& axis, const std::vector<int>& ranks,
                                    int rank) {
  Lock lock(mutex_);
  const int instance = of(rank).groups_made[{axis, ranks}]++;
  Group& group = group_of(axis, ranks, instance);
  const auto member = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  group.joined[static_cast<std::size_t>(member)] = true;
  return group;
}

/// REQUIRES the world's mutex.
Rendezvous::Group& Rendezvous::group_of(const std::string& axis, const std::vector<int>& ranks,
                                        int instance) {
  auto& group = groups_[{axis, ranks, instance}];
  if (!group) {
    const auto running = std::count_if(ranks.begin(), ranks.end(),
                                       [this](int member) { return takes_part(member); });
    GroupInfo info{axis, ranks, instance, static_cast<int>(running),
                   c10::str(axis, " [", c10::Join(", ", ranks), "]")};
    if (instance > 0) info.label += c10::str(" (instance ", instance, ")");
    group = std::make_unique<Group>();
    group->joined.resize(ranks.size());
    group->info = std::make_shared<const GroupInfo>(std::move(info));
  }
  return *group;
}

void Rendezvous::check_caller(int rank) {
  if (program_ && !threads_.is_thread_of(seat(rank))) has_other_threads_ = true;
  TORCH_CHECK(threads_.state(seat(rank)) != HostThreads::State::kEnded, "a communication of rank ",
              rank,
              " after the rank has ended: groups live as long as their world runs; communicate "
              "before, or make another world");
  TORCH_CHECK(
      has_other_threads_ || threads_.is_thread_of(seat(rank)), "a communication of rank ", rank,
      " was called on another thread: ",
      "every rank speaks for itself, on its own thread (keep autograd multithreading off in it)");
}

void Rendezvous::throw_if_cancelled() const {
  if (cancelled_ && program_ && verdict_) throw Error(verdict_->code, verdict_->cause);
  if (cancelled_) throw Cancelled();
}

void Rendezvous::remember(int rank, const Side& side, const std::shared_ptr<Transfer>& transfer,
                          CallPlace place) {
  of(rank).recorder.add(side, transfer, of(rank).step, std::move(place));
}

std::shared_ptr<Transfer> Rendezvous::exchange(Group& group, int member, std::uint64_t sequence,
                                               Side side) {
  return with_records([&] { return start_exchange(group, member, sequence, std::move(side)); });
}

std::shared_ptr<Transfer> Rendezvous::start_exchange(Group& group, int member,
                                                     std::uint64_t sequence, Side side) {
  const int rank = group.info->ranks[static_cast<std::size_t>(member)];
  CallPlace place = current_place();
  Lock lock(mutex_);
  check_caller(rank);
  const std::shared_ptr<Exchange> exchange = exchange_of(group, sequence);
  side.place = describe(place);
  // Who comes to a mismatch after it was found is in the dumps too: it is not missing.
  if (!cancelled_ || exchange->error) remember(rank, side, exchange, std::move(place));
  throw_if_cancelled();
  if (link_ != nullptr) {
    lock.unlock();
    announce_side(group, member, sequence, side);
    lock.lock();
    throw_if_cancelled();
  }
  if (exchange->error) std::rethrow_exception(exchange->error);
  arrive(lock, group, member, exchange, std::move(side));
  return exchange;
}

/// REQUIRES the world's mutex.
std::shared_ptr<Exchange> Rendezvous::exchange_of(Group& group, std::uint64_t sequence) {
  auto& slot = group.exchanges[sequence];
  if (!slot) slot = std::make_shared<Exchange>(group.info, sequence);
  return slot;
}

void Rendezvous::arrive(Lock& lock, Group& group, int member,
                        const std::shared_ptr<Exchange>& exchange, Side side) {
  check_agreement(*exchange, member, side);
  exchange->sides[static_cast<std::size_t>(member)] = std::move(side);
  if (++exchange->arrivals < group.info->running) return;
  if (exchange->arrivals == static_cast<int>(exchange->sides.size())) check_splits(*exchange);
  group.exchanges.erase(exchange->sequence);
  move(lock, *exchange);
}

void Rendezvous::check_agreement(Exchange& exchange, int member, const Side& side) {
  const auto& ranks = exchange.group->ranks;
  for (std::size_t m = 0; m < exchange.sides.size(); ++m) {
    if (!exchange.sides[m]) continue;
    const CommCall& other = exchange.sides[m]->call;
    if (matches(other, side.call)) return;  // those that are there agree already
    const int rank = ranks[static_cast<std::size_t>(member)];
    // The lower rank states what is expected, whoever came first: the text does not depend on
    // timing.
    const Belief first{ranks[m], other, exchange.sides[m]->place};
    const Belief second{rank, side.call, side.place};
    throw_mismatch(exchange, ranks[m] < rank ? disagreement(exchange, first, second)
                                             : disagreement(exchange, second, first));
  }
}

void Rendezvous::check_splits(Exchange& exchange) {
  if (exchange.sides[0]->call.op != CommOp::kAllToAll) return;
  const std::size_t members = exchange.group->ranks.size();
  const auto check = [&](std::size_t from, std::size_t to) {
    const std::int64_t sent = exchange.sides[from]->input_splits[to];
    const std::int64_t expected = exchange.sides[to]->output_splits[from];
    if (sent != expected) throw_splits(exchange, from, to, sent, expected);
  };
  // Two ranks that disagree say more than one whose own lists do.
  for (std::size_t from = 0; from < members; ++from) {
    for (std::size_t to = 0; to < members; ++to) {
      if (from != to) check(from, to);
    }
  }
  for (std::size_t member = 0; member < members; ++member) check(member, member);
}

void Rendezvous::throw_splits(Exchange& exchange, std::size_t from, std::size_t to,
                              std::int64_t sent, std::int64_t expected) {
  const auto& ranks = exchange.group->ranks;
  const auto place = [&](std::size_t member) {
    return c10::str("\n  rank ", ranks[member], exchange.sides[member]->place);
  };
  throw_mismatch(exchange, c10::str("communication mismatch: all-to-all #", exchange.sequence,
                                    " of ", exchange.group->label, ": rank ", ranks[to],
                                    " expected ", expected, " elements from rank ", ranks[from],
                                    ", got ", sent, ": make the split sizes of the two ranks agree",
                                    place(from), from == to ? "" : place(to)));
}

std::shared_ptr<const Movement> Rendezvous::movement_of(const Exchange& exchange) {
  const Side& first = *exchange.sides[0];
  if (first.call.op == CommOp::kAllToAll && !is_even(exchange)) {
    std::vector<std::vector<std::int64_t>> splits;
    for (const auto& side : exchange.sides) splits.push_back(side->input_splits);
    return std::make_shared<const Movement>(uneven_exchange(splits));
  }
  const int members = static_cast<int>(exchange.sides.size());
  const MovementKey key{plan_kind(first.call.op), first.call.elements, members,
                        std::max(first.call.root, 0)};
  Lock lock(movements_mutex_);
  if (movements_.size() > kKeptMovements) movements_.clear();
  auto& movement = movements_[key];
  if (!movement) {
    // A reduce runs the all-reduce plan, whose root is no particular rank.
    const bool rotated = std::get<0>(key) == sim::CollectiveKind::kBroadcast;
    const auto plan = sim::ring_plan(std::get<0>(key), members, first.call.elements);
    movement = std::make_shared<const Movement>(execute_plan(plan, rotated ? std::get<3>(key) : 0));
  }
  return movement;
}

/// All members are there: moves the bytes, with the help of members that wait when there are many.
void Rendezvous::move(Lock& lock, Exchange& exchange) {
  bool has_data = false;
  for (const auto& side : exchange.sides) {
    if (!side) continue;  // does not run, so no one has data
    exchange.buffers.push_back(&side->buffers);
    has_data |= !side->buffers.inputs.empty();
  }
  if (!has_data) return complete(exchange);
  exchange.call = exchange.sides[0]->call;
  lock.unlock();
  exchange.movement = movement_of(exchange);
  lock.lock();
  const auto item = static_cast<std::int64_t>(c10::elementSize(exchange.call.dtype));
  exchange.length = total_length(*exchange.movement);
  exchange.parts = (exchange.length * item + kPartBytes - 1) / kPartBytes;
  if (exchange.parts > 1) {
    make_ready(exchange.waiting);
  }
  help(lock, exchange);
}

void Rendezvous::help(Lock& lock, Exchange& exchange) {
  lock.unlock();
  const bool finished = exchange.move_parts();
  if (finished) {
    for (auto& side : exchange.sides) write_back(*side);
  }
  lock.lock();
  if (!finished) return;
  const auto item = static_cast<std::int64_t>(c10::elementSize(exchange.call.dtype));
  for (std::size_t m = 0; m < exchange.sides.size(); ++m) {
    const int rank = exchange.group->ranks[m];
    if (seat(rank) >= 0) of(rank).bytes_sent += exchange.movement->sent[m] * item;
  }
  complete(exchange);
}

void Rendezvous::complete(Transfer& transfer) {
  transfer.release();
  if (!transfer.error) transfer.ended_ns = host_time_ns();
  transfer.done = true;
  make_ready(transfer.waiting);
}

void Rendezvous::throw_mismatch(Transfer& transfer, const std::string& text) {
  transfer.error = std::make_exception_ptr(Error(ExitCode::kHang, text));
  complete(transfer);
  std::rethrow_exception(transfer.error);
}

namespace {

Side barrier_side() {
  Side side;
  side.call.op = CommOp::kBarrier;
  return side;
}

}  // namespace

void Rendezvous::host_barrier(int rank, std::chrono::milliseconds timeout) {
  const int member = link_ != nullptr ? member_of_world(rank) : seat(rank);
  wait(rank, *exchange(*host_group_, member, next_barrier(rank, false), barrier_side()), timeout);
}

void Rendezvous::meet_for_group(int rank, const std::string& axis, const std::vector<int>& ranks,
                                const GroupCount& count, std::chrono::milliseconds timeout) {
  Group& group = join("the making of " + axis, ranks, rank);
  const auto member = std::ranges::find(ranks, rank) - ranks.begin();
  Side side;
  side.call.op = CommOp::kNewGroup;
  side.call.elements = count.number;
  wait(rank, *exchange(group, static_cast<int>(member), 0, std::move(side)), timeout);
}

void Rendezvous::process_barrier(int rank, std::chrono::milliseconds timeout) {
  if (process_group_ == nullptr) return host_barrier(rank, timeout);
  wait(rank, *exchange(*process_group_, seat(rank), next_barrier(rank, true), barrier_side()),
       timeout);
}

}  // namespace trellis::runtime
