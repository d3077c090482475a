#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/calls/call_place.h"
#include "runtime/calls/flight_recorder.h"
#include "runtime/calls/transfer.h"
#include "runtime/links/process_link.h"
#include "runtime/rendezvous/host_threads.h"

namespace trellis::runtime {

/// Thrown in a rank that another rank's failure wakes. It ends the rank's thread and is never the
/// error that is reported.
class Cancelled final : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override {
    return "cancelled: another rank of this world failed";
  }
};

/// Groups that a program has made, its rank a member or not, and where it made the last.
struct GroupCount {
  std::int64_t number = 0;
  std::string place;
};

/// The meeting point of the ranks of one world: collectives meet by group and sequence number,
/// messages by ordered pair. Every rank speaks for itself, on its own thread. Each process has one
/// for its ranks; with a link, those of the other processes arrive by message, with their bytes,
/// and every process moves what its own ranks receive: sums are those of one process, bit for bit.
class Rendezvous : public std::enable_shared_from_this<Rendezvous> {
 public:
  using Clock = HostThreads::Clock;
  /// `ranks`: those that run, ascending. A group's other members count as arrived, wherever they
  /// would be waited for.
  Rendezvous(std::vector<int> ranks, int permits, std::chrono::milliseconds timeout);
  /// Ranks of one process among others, which share out `world`, ascending: as many in each, in
  /// order. `link` outlives this.
  Rendezvous(std::vector<int> ranks, int permits, std::chrono::milliseconds timeout,
             ProcessLink& link, std::vector<int> world);
  /// A process that is one rank, whose program goes on by itself: no one gathers the failures of
  /// the ranks, so each throws the world's; the program may have several threads; and a process
  /// that ends is missed by those who wait for it.
  struct Program {
    /// Where it is while it does not communicate, ", at train.py:3 in body"; waits a moment at
    /// most.
    std::function<std::string()> place;
    /// Writes what the rank did last; returns lines for an error's text.
    std::function<std::string()> records;
  };
  void speak_for(Program program) { program_ = std::move(program); }
  /// Sets whether a Program has no thread but the rank's. Other threads may communicate later,
  /// which would end what looks like a hang.
  void set_single_thread(bool single) { has_single_thread_ = single; }
  /// Messages of other processes are received from here on. REQUIRES: a link; a shared_ptr owns
  /// this.
  void listen();
  /// This process's ranks have ended: waits for those of the others. False: some did not end within
  /// `patience`.
  bool leave(std::chrono::milliseconds patience = std::chrono::hours(24 * 365),
             const GroupCount& groups = {});

  // --- ranks ---
  void enter(int rank);  ///< the calling thread is `rank` from here on; waits for its permit to run
  void end(int rank);    ///< the rank will never communicate again
  /// Records the failure of `rank` and wakes every other rank. nullptr and Cancelled are no causes.
  void fail(int rank, std::exception_ptr cause);
  /// Throws the failure of the lowest rank. Failures that a lost connection cannot explain come
  /// before those that it can. Returns when there is none.
  void rethrow_first_failure() const;
  /// True if the run is to stop. The n-th call of every rank gives the same answer, so ranks stop
  /// at the same step border; a failure of another rank is seen at once.
  bool stop_requested(int rank);
  /// The n-th call of every rank returns what the first of them said.
  bool agree(int rank, bool said);
  void begin_step(int rank, std::int64_t step);
  [[nodiscard]] std::int64_t bytes_sent(int rank) const;
  [[nodiscard]] bool has_failed() const;  ///< a rank of the world has
  [[nodiscard]] bool is_over() const;     ///< a hang or a failure has ended the world
  /// Throws Error(kHang) for what only some members did: a send that was never received, a group
  /// that a member never made, a communication that was started and never waited for. REQUIRES:
  /// every rank has ended.
  void check_complete() const;
  /// The same for groups of which `rank` need not be a member. REQUIRES: every process has left.
  void check_group_counts(int rank, const GroupCount& mine) const;
  /// True if the rank of a Program was notified of an error.
  [[nodiscard]] bool is_notified() const { return is_notified_; }

  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  /// The world hangs outside any communication.
  void declare_hang(const std::string& text);

  /// Where a rank is now: its step, its place in the program and its thread.
  struct Whereabouts {
    int rank = 0;
    std::int64_t step = -1;  ///< -1: none has begun
    std::string text;
    pid_t thread = 0;  ///< the system's number
  };
  /// Ranks of this process that have begun and not ended.
  [[nodiscard]] std::vector<Whereabouts> whereabouts() const;

  struct Overdue {
    std::string cause;  ///< why the world is over
    ExitCode code = ExitCode::kHang;
    std::vector<Whereabouts> ranks;  ///< those that go on all the same
  };
  /// The ranks that have not ended kGrace after a hang was found, or the world's timeout after
  /// another failure. Nullopt: none.
  [[nodiscard]] std::optional<Overdue> overdue() const;
  static constexpr std::chrono::seconds kGrace{1};
  /// Longer ones would overflow the clock.
  static constexpr std::chrono::milliseconds kLongestPatience = std::chrono::hours(24 * 365);

  /// The last communications of each rank of this process.
  [[nodiscard]] std::vector<FlightDump> flight_dumps() const;

  // --- groups ---
  struct Group;
  Group& join(const std::string& axis, const std::vector<int>& ranks, int rank);
  /// The members of a group that is being made meet, each with its GroupCount.
  void meet_for_group(int rank, const std::string& axis, const std::vector<int>& ranks,
                      const GroupCount& count, std::chrono::milliseconds timeout);
  /// A connection to what all ranks of the world share, of the caller alone.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> new_store();

  // --- communications: start returns at once, wait blocks ---
  std::shared_ptr<Transfer> exchange(Group& group, int member, std::uint64_t sequence, Side side);
  std::shared_ptr<Transfer> send(Group& group, int member, int to, std::uint64_t sequence,
                                 Side side);
  std::shared_ptr<Transfer> receive(Group& group, int member, int from, std::uint64_t sequence,
                                    Side side);
  /// Throws what the transfer failed with, Cancelled, or Error(kHang). `timeout` zero: the world's.
  void wait(int rank, Transfer& transfer, std::chrono::milliseconds timeout = {});
  void host_barrier(int rank, std::chrono::milliseconds timeout = {});
  /// host_barrier among this process's ranks.
  void process_barrier(int rank, std::chrono::milliseconds timeout = {});
  /// The number of a call that all ranks of the world make: of the next host_barrier, which it
  /// replaces.
  [[nodiscard]] std::uint64_t next_call(int rank) { return next_barrier(rank, false); }
  [[nodiscard]] const std::vector<int>& running() const { return running_; }
  /// See RankContext::together.
  void together(int rank, const std::function<void()>& body);
  /// Throws what together() failed with, if the rank is in it. REQUIRES: the lock is not held.
  void check_section(int rank) const {
    const Lock lock(mutex_);
    throw_section_error(rank);
  }

 private:
  using Lock = HostThreads::Lock;
  using MovementKey =
      std::tuple<sim::CollectiveKind, std::int64_t, int, int>;  ///< kind, elements, members, root
  struct RankState {
    FlightRecorder recorder;
    OpenScopes scopes;
    const Transfer* waits_for = nullptr;  ///< null: it does not wait
    Clock::time_point waits_since;
    std::int64_t step = -1;
    std::int64_t stop_queries = 0;
    std::size_t agreements = 0;
    std::int64_t bytes_sent = 0;
    std::uint64_t host_barriers = 0, process_barriers = 0;
    std::int64_t section = 0;  ///< of together(), from 1 on; 0: none
    std::int64_t sections = 0;
    std::uint64_t section_host_barriers = 0, section_process_barriers = 0;
    std::map<std::pair<std::string, std::vector<int>>, int> groups_made;
    std::exception_ptr failure;
  };

  std::shared_ptr<Transfer> start_exchange(Group& group, int member, std::uint64_t sequence,
                                           Side side);
  std::shared_ptr<Transfer> post(Group& group, int member, int from, std::uint64_t sequence,
                                 Side side);
  Group& group_of(const std::string& axis, const std::vector<int>& ranks, int instance);
  void arrive(Lock& lock, Group& group, int member, const std::shared_ptr<Exchange>& exchange,
              Side side);
  std::shared_ptr<Exchange> exchange_of(Group& group, std::uint64_t sequence);

  // --- with other processes ---
  [[nodiscard]] int process_of(int rank) const {
    return member_of_world(rank) / static_cast<int>(running_.size());  // as many ranks in each
  }
  [[nodiscard]] int member_of_world(int rank) const;
  [[nodiscard]] bool is_remote(int rank) const { return link_ != nullptr && seat(rank) < 0; }
  /// True if the rank runs, here or in another process.
  [[nodiscard]] bool takes_part(int rank) const { return link_ != nullptr || seat(rank) >= 0; }
  [[nodiscard]] bool none_can_wake(int rank) const {
    return link_ == nullptr && threads_.is_last_awake(seat(rank));
  }
  void announce_side(const Group& group, int member, std::uint64_t sequence, const Side& side);
  void announce_message(const Group& group, const Message& message, const std::string& place);
  void announce_failure(int rank, const std::string& text, ExitCode code);
  void count_sent(const std::set<int>& processes);
  void answer_question(int process, const nlohmann::json& what);
  void received_answer(int process, const nlohmann::json& what);
  void received_done(int process, const nlohmann::json& what);
  void received(int process, const nlohmann::json& what, const at::Tensor& data);
  void received_side(const nlohmann::json& what, const at::Tensor& data);
  void received_message(const nlohmann::json& what, const at::Tensor& data);
  void lost(int process, const ProcessLink::Loss& loss);
  void fail_remote(int rank, std::exception_ptr cause, const std::string& text, ExitCode code,
                   std::chrono::milliseconds grace);
  /// Ranks of processes that have ended.
  [[nodiscard]] bool has_departed(int rank) const;

  std::uint64_t next_barrier(int rank, bool of_process);
  void leave_section(int rank, const std::exception_ptr& failure);
  void fail_section(std::int64_t section, std::exception_ptr error);
  void received_section(const nlohmann::json& what);
  void throw_section_error(int rank) const;  ///< REQUIRES: the lock
  [[nodiscard]] bool is_of_failed_section(const Transfer& transfer) const;
  void check_caller(int rank);
  void throw_if_cancelled() const;
  void remember(int rank, const Side& side, const std::shared_ptr<Transfer>& transfer,
                CallPlace place);
  void check_agreement(Exchange& exchange, int member, const Side& side);
  void check_splits(Exchange& exchange);
  [[noreturn]] void throw_splits(Exchange& exchange, std::size_t from, std::size_t to,
                                 std::int64_t sent, std::int64_t expected);
  void move(Lock& lock, Exchange& exchange);
  std::shared_ptr<const Movement> movement_of(const Exchange& exchange);
  static std::shared_ptr<Message> message(Group& group, int sender, int receiver,
                                          std::uint64_t sequence);
  void deliver(Lock& lock, Group& group, Message& message);
  void settle(Group& group, Message& message);
  void help(Lock& lock, Exchange& exchange);
  void complete(Transfer& transfer);
  [[noreturn]] void throw_mismatch(Transfer& transfer, const std::string& text);
  /// Calls `body`. Exceptions that it throws in a Program have the place of the records in their
  /// text, and the other processes learn of a hang.
  template <typename Body>
  auto with_records(Body body) {
    if (!program_) return body();
    try {
      return body();
    } catch (const Error& error) {
      throw_with_records(error);
    }
  }
  [[noreturn]] void throw_with_records(const Error& error);
  void wait_for(int rank, Transfer& transfer, std::chrono::milliseconds timeout);
  void wait_on_other_thread(Lock& lock, int rank, Transfer& transfer,
                            std::chrono::milliseconds timeout);
  [[nodiscard]] Clock::time_point next_check(const Transfer& transfer, Clock::time_point began,
                                             std::chrono::milliseconds timeout) const;
  /// The activity of a rank of this or another process, for the report of a hang.
  struct Doing {
    std::string whereabouts;
    std::string waits_in;  ///< a communication; "": it does not wait
    HostThreads::State state = HostThreads::State::kUnstarted;
    std::chrono::milliseconds since{0};  ///< it has been in that state so long
    bool only_waits = false;             ///< nothing but a message of another can make it go on
  };
  using Doings = std::map<int, Doing>;  ///< by rank
  /// A process at one moment.
  struct Picture {
    Doings doings;
    std::vector<std::uint64_t> sent, received;  ///< messages, by process
  };
  /// True if a rank of `missing` will not come, or not in time. A rank that waits for others itself
  /// is not late, as long as any rank could still wake it.
  [[nodiscard]] bool are_late(const std::vector<int>& missing, const Doings& doings,
                              std::chrono::milliseconds timeout) const;
  /// `hopeless`: a line that says why no one can arrive; "": someone may, and is late.
  [[noreturn]] void throw_hang(int rank, const Transfer& transfer, Clock::time_point began,
                               const char* hopeless, const Doings& doings);
  /// A wait, as it goes on.
  struct Patience {
    Clock::time_point began;
    std::chrono::milliseconds timeout;
    std::chrono::milliseconds pause;  ///< until other processes are asked again
  };
  /// After a time-out: throws, or returns when to look again.
  [[nodiscard]] Clock::time_point look_around(Lock& lock, int rank, const Transfer& transfer,
                                              Patience& patience);
  [[nodiscard]] Clock::time_point ask_around(Lock& lock, int rank, const Transfer& transfer,
                                             const Patience& patience);
  void world_is_over(const std::string& cause, ExitCode code, int failed = -1,
                     std::chrono::milliseconds grace = {});
  [[nodiscard]] Doings doings_here() const;    ///< REQUIRES: the lock
  [[nodiscard]] Picture picture_here() const;  ///< REQUIRES: the lock
  /// By process, without those that do not answer. `with_places`: also where programs are that do
  /// not wait.
  [[nodiscard]] std::map<int, Picture> pictures_of_others(Lock& lock, bool with_places);
  /// All processes, those too that have ended and say nothing. Nullopt: another one says nothing.
  [[nodiscard]] std::optional<std::map<int, Picture>> pictures_of_all(Lock& lock);
  /// True if no rank of any process can ever go on: all of them wait, and no message is under way.
  [[nodiscard]] bool none_can_go_on(Lock& lock);
  struct Now {
    std::string text;
    std::int64_t since_ns = 0;  ///< as host_time_ns()
  };
  [[nodiscard]] Now now_of(int rank) const;
  [[nodiscard]] std::string whereabouts_of(int rank) const;
  [[nodiscard]] std::vector<Whereabouts> whereabouts_of_all() const;  ///< REQUIRES: the lock
  [[nodiscard]] bool has_joined(const GroupInfo& info, int rank) const;
  /// One rank's description of a communication, and where it called it.
  struct Belief {
    int rank = 0;
    const CommCall& call;
    const std::string& place;
  };
  [[nodiscard]] std::string disagreement(const Transfer& transfer, const Belief& expected,
                                         const Belief& got) const;
  /// Place among the ranks that run; −1: does not run.
  [[nodiscard]] int seat(int rank) const;
  RankState& of(int rank) { return ranks_[static_cast<std::size_t>(seat(rank))]; }
  [[nodiscard]] const RankState& of(int rank) const {
    return ranks_[static_cast<std::size_t>(seat(rank))];
  }
  void make_ready(const std::vector<int>& ranks);
  [[nodiscard]] std::vector<int> missing_that_run(const Transfer& transfer) const;

  mutable std::mutex mutex_;
  const std::vector<int> running_;  ///< ranks by seat
  HostThreads threads_;             ///< by seat
  std::chrono::milliseconds timeout_;
  std::vector<RankState> ranks_;  ///< by seat
  std::map<std::tuple<std::string, std::vector<int>, int>, std::unique_ptr<Group>> groups_;
  std::mutex movements_mutex_;
  std::map<MovementKey, std::shared_ptr<const Movement>>
      movements_;                          ///< plans of past calls: training repeats itself
  Group* host_group_ = nullptr;            ///< of host_barrier
  Group* process_group_ = nullptr;         ///< of process_barrier; null: host_group_ is
  ProcessLink* link_ = nullptr;            ///< null: no other processes
  c10::intrusive_ptr<c10d::Store> store_;  ///< null: the link's
  std::vector<int> world_;                 ///< ranks of all processes; empty: no other processes
  std::optional<Program> program_;         ///< see speak_for
  std::map<int, std::exception_ptr> remote_failures_;  ///< by rank
  std::vector<bool> processes_done_;                   ///< whether their ranks ended or failed
  std::map<std::int64_t, std::exception_ptr> section_errors_;  ///< by section
  std::map<int, std::string> lost_;                            ///< why, by process
  std::map<int, GroupCount> groups_of_others_;                 ///< by process
  std::atomic<bool> has_single_thread_ = false;                ///< see set_single_thread
  std::atomic<bool> is_notified_ = false;               ///< the rank of a Program, of an error
  std::atomic<bool> is_announced_ = false;              ///< other processes know of the failure
  bool has_other_threads_ = false;                      ///< of a Program, which communicate
  std::vector<std::uint64_t> sent_to_, received_from_;  ///< messages, by process
  Doings last_doings_;                                  ///< of none_can_go_on(), when it is true
  std::map<int, Picture> answers_;                      ///< to the newest question, by process
  std::condition_variable answered_;
  std::atomic<bool> cancelled_{false};
  struct Verdict {
    std::string cause;
    ExitCode code = ExitCode::kHang;
    Clock::time_point overdue_from;  ///< ranks that go on after it are reported
    std::map<int, Now> now;          ///< what the ranks of this process did then
  };
  std::optional<Verdict> verdict_;  ///< the first
  std::int64_t last_go_on_ = -1;    ///< the newest stop query that was answered "go on"
  std::int64_t stop_from_ = -1;     ///< the first one that was answered "stop"
  std::vector<bool> agreed_;        ///< answers of agree(), by number
  std::uint64_t questions_ = 0;     ///< to other processes, what their ranks do
  bool asks_ = false;               ///< a rank waits for their answers
};

struct Rendezvous::Group {
  std::shared_ptr<const GroupInfo> info;
  std::vector<bool> joined;                                      ///< by member
  std::map<std::uint64_t, std::shared_ptr<Exchange>> exchanges;  ///< by sequence number
  std::map<std::tuple<int, int, std::uint64_t>, std::shared_ptr<Message>>
      messages;  ///< by sender, receiver, sequence number
};

}  // namespace trellis::runtime
