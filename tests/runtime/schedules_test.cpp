// No false alarm: random schedules with late ranks run to their end, in threads and across
// processes, and each of them is reported once a rank leaves out a communication.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "runtime/links/process_link.h"
#include "tests/runtime/relay.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{500};
/// Delay of a slow rank before each of its communications: never late itself, and three one after
/// the other are later than the timeout for the rank that waits for the last.
constexpr milliseconds kSlow{200};

struct Event {
  int group = -1;         ///< of a collective; -1: a message
  int op = 0;             ///< of a collective
  int from = 0, to = 0;   ///< of a message
  std::int64_t size = 1;  ///< elements
  bool deferred = false;  ///< waited for at the end
};

struct Schedule {
  int ranks = 2;
  int processes = 1;
  int host_threads = 1;
  std::vector<std::vector<int>> groups;
  std::vector<Event> events;
  std::vector<std::vector<milliseconds>> delays;  ///< by event and rank
  int lazy_rank = -1;                             ///< leaves out event `left_out`; -1: none
  std::size_t left_out = 0;
};

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  Schedule make() {
    Schedule schedule;
    schedule.processes = one_in(4) ? 2 : 1;
    schedule.ranks = schedule.processes * below(2, 3);
    if (schedule.processes == 1) schedule.ranks = below(2, 6);
    schedule.host_threads = one_in(3) ? 1 : schedule.ranks;
    for (int i = below(1, 4); i > 0; --i) schedule.groups.push_back(some_ranks(schedule.ranks));
    for (int i = below(4, 16); i > 0; --i) schedule.events.push_back(event(schedule));
    if (one_in(10)) add_slow_chain(schedule);
    for (std::size_t i = schedule.delays.size(); i < schedule.events.size(); ++i)
      schedule.delays.push_back(delays(schedule.ranks, one_in(8) ? 20 : 2));
    return schedule;
  }
  int below(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  bool one_in(int n) { return below(1, n) == 1; }

  std::vector<int> some_ranks(int ranks) {
    std::vector<int> all = all_ranks(ranks);
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(static_cast<std::size_t>(below(2, ranks)));
    std::sort(all.begin(), all.end());
    return all;
  }

  Event event(const Schedule& schedule) {
    Event event;
    event.size = below(1, 3) == 1 ? 5000 : below(1, 64);
    event.deferred = one_in(3);
    if (one_in(3)) {
      event.from = below(0, schedule.ranks - 1);
      event.to = (event.from + below(1, schedule.ranks - 1)) % schedule.ranks;
    } else {
      event.group = below(0, static_cast<int>(schedule.groups.size()) - 1);
      event.op = below(0, 3);
    }
    return event;
  }

  std::vector<milliseconds> delays(int ranks, int most_ms) {
    std::vector<milliseconds> result;
    for (int rank = 0; rank < ranks; ++rank) result.emplace_back(below(0, most_ms));
    return result;
  }

  /// Messages 0 → 1 → 2 → …, each after its sender has worked.
  static void add_slow_chain(Schedule& schedule) {
    std::vector<Event> chain;
    for (int rank = 0; rank + 1 < schedule.ranks; ++rank) {
      Event message;
      message.from = rank;
      message.to = rank + 1;
      chain.push_back(message);
      auto& delays = schedule.delays.emplace_back(static_cast<std::size_t>(schedule.ranks));
      delays[static_cast<std::size_t>(rank)] = kSlow;
    }
    schedule.events.insert(schedule.events.begin(), chain.begin(), chain.end());
  }

  std::mt19937_64 random_;
};

c10::intrusive_ptr<c10d::Work> start(const Event& event, const Group& group, Tensors& tensors) {
  switch (event.op) {
    case 0: return group->allreduce(tensors);
    case 1: return group->broadcast(tensors);
    case 2: return group->barrier();
    default: return group->reduce(tensors);
  }
}

void play(RankContext& context, const Schedule& schedule) {
  const int rank = context.rank();
  const Group everyone = context.new_group("world", all_ranks(schedule.ranks));
  std::vector<Group> groups;
  for (std::size_t g = 0; g < schedule.groups.size(); ++g) {
    const auto& members = schedule.groups[g];
    const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
    groups.push_back(is_member ? context.new_group("g" + std::to_string(g), members) : Group());
  }
  std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, Tensors>> deferred;
  for (std::size_t i = 0; i < schedule.events.size(); ++i) {
    const Event& event = schedule.events[i];
    if (schedule.lazy_rank == rank && schedule.left_out == i) continue;
    const auto g = static_cast<std::size_t>(event.group);
    if (event.group < 0 ? rank != event.from && rank != event.to : !groups[g]) continue;
    std::this_thread::sleep_for(schedule.delays[i][static_cast<std::size_t>(rank)]);
    Tensors tensors{at::ones({event.size})};
    auto work = event.group >= 0     ? start(event, groups[g], tensors)
                : rank == event.from ? everyone->send(tensors, event.to, 0)
                                     : everyone->recv(tensors, event.from, 0);
    if (event.deferred) {
      deferred.emplace_back(std::move(work), tensors);
    } else {
      work->wait();
    }
  }
  for (auto& [work, tensors] : deferred) work->wait();
}

/// As one of the processes: they differ in nothing that the runtime sees.
void run_process(const Schedule& schedule, int process, int port) {
  WorldOptions options = world(schedule.ranks);
  options.timeout = kTimeout;
  options.host_threads = schedule.host_threads;
  std::unique_ptr<ProcessLink> link;
  if (schedule.processes > 1) {
    Launch launch{"a test", process, schedule.processes, "127.0.0.1", port};
    link = std::make_unique<ProcessLink>(launch, std::chrono::seconds(20),
                                         std::vector<std::pair<std::string, std::string>>{});
    options.link = link.get();
  }
  run_ranks(options, [&](RankContext& context) { play(context, schedule); });
}

/// The first error of its processes; "": none.
std::string outcome(const Schedule& schedule) {
  const int port = schedule.processes > 1 ? free_port() : 0;
  std::vector<std::string> errors(static_cast<std::size_t>(schedule.processes));
  std::vector<std::thread> processes;
  for (int process = 0; process < schedule.processes; ++process) {
    processes.emplace_back([&, process] {
      try {
        run_process(schedule, process, port);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(process)] = error.what();
      }
    });
  }
  for (std::thread& process : processes) process.join();
  const auto first = std::find_if(errors.begin(), errors.end(),
                                  [](const std::string& error) { return !error.empty(); });
  return first == errors.end() ? "" : *first;
}

/// TRELLIS_SCHEDULES=1000 runs the whole set, which takes minutes.
std::uint64_t count() {
  const char* given = std::getenv("TRELLIS_SCHEDULES");
  return given == nullptr ? 25 : std::stoull(given);
}

TEST(Schedules, NoneIsTakenForAHang) {
  for (std::uint64_t seed = 1; seed <= count(); ++seed) {
    const std::string error = outcome(Maker(seed).make());
    EXPECT_EQ(error, "") << "seed " << seed;
  }
}

TEST(Schedules, EachIsReportedWhenARankLeavesOutACommunication) {
  for (std::uint64_t seed = 1; seed <= count(); ++seed) {
    Maker maker(seed);
    Schedule schedule = maker.make();
    schedule.left_out =
        static_cast<std::size_t>(maker.below(0, static_cast<int>(schedule.events.size()) - 1));
    const Event& event = schedule.events[schedule.left_out];
    schedule.lazy_rank =
        event.group < 0 ? event.to : schedule.groups[static_cast<std::size_t>(event.group)][0];
    EXPECT_THAT(outcome(schedule), ::testing::StartsWith("communication ")) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trellis::runtime::testing
