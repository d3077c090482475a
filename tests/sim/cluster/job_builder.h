#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "sim/sim.h"

namespace trellis::sim::testing {

/// Writes cluster jobs in few words.
class JobBuilder {
 public:
  explicit JobBuilder(int ranks) {
    job_.ranks.resize(static_cast<std::size_t>(ranks));
    job_.cores.resize(static_cast<std::size_t>(ranks));
    std::iota(job_.cores.begin(), job_.cores.end(), 0);
  }

  /// A program of one segment that takes this long and reads so much of HBM.
  std::uint32_t program(Picoseconds duration, Bytes hbm = {}) {
    auto timing = std::make_shared<CoreTiming>();
    timing->segments.emplace_back();
    timing->segments[0].duration = duration;
    timing->segments[0].hbm_read = hbm;
    job_.programs.push_back(timing);
    return static_cast<std::uint32_t>(job_.programs.size() - 1);
  }
  std::uint32_t group(const char* axis, std::vector<int> ranks) {
    job_.groups.push_back({axis, std::move(ranks)});
    next_.push_back(0);
    return static_cast<std::uint32_t>(job_.groups.size() - 1);
  }
  std::uint32_t comm(CollectiveKind kind, std::uint32_t group, std::int64_t bytes) {
    job_.comms.push_back({kind, group, next_[group]++, bytes, 1, -1, -1});
    return static_cast<std::uint32_t>(job_.comms.size() - 1);
  }
  std::uint32_t transfer(std::uint32_t group, int from, int to, std::int64_t bytes) {
    job_.comms.push_back({CollectiveKind::kSendRecv, group, next_[group]++, bytes, 1, from, to});
    return static_cast<std::uint32_t>(job_.comms.size() - 1);
  }
  void compute(int rank, std::uint32_t program) {
    add(rank, {ScheduleItem::Kind::kSegment, program, 0, 0});
  }
  void launch(int rank, std::uint32_t program, std::int64_t operations = 0,
              bool after_read = false) {
    add(rank, {.kind = ScheduleItem::Kind::kLaunch,
               .program = program,
               .operations = operations,
               .after_read = after_read});
  }
  void start(int rank, std::uint32_t comm) {
    add(rank, {ScheduleItem::Kind::kCommStart, 0, 0, comm});
  }
  void wait(int rank, std::uint32_t comm) {
    add(rank, {ScheduleItem::Kind::kCommWait, 0, 0, comm});
  }
  /// Every member starts and waits.
  void all(std::uint32_t comm) {
    for (const int rank : job_.groups[job_.comms[comm].group].ranks) {
      start(rank, comm);
      wait(rank, comm);
    }
  }
  ClusterJob& job() { return job_; }

 private:
  void add(int rank, const ScheduleItem& item) {
    job_.ranks[static_cast<std::size_t>(rank)].push_back(item);
  }

  ClusterJob job_;
  std::vector<std::uint64_t> next_;
};

inline std::vector<int> range(int begin, int end, int step = 1) {
  std::vector<int> ranks;
  for (int r = begin; r < end; r += step) ranks.push_back(r);
  return ranks;
}

}  // namespace trellis::sim::testing
