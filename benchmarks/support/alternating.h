#pragma once

#include <time.h>

#include <algorithm>
#include <vector>

#include <benchmark/benchmark.h>

/// Two bodies timed alternately within one run, on the calling thread's CPU clock: what else the
/// machine does burdens both alike, and the smallest of many short rounds is what the code itself
/// costs.
namespace trellis::benchmarks {

inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Seconds per call.
struct Timing {
  double minimum = 0;
  double median = 0;
};

inline Timing timing_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples.front(), samples[samples.size() / 2]};
}

struct Alternating {
  Timing baseline;
  Timing ours;
  /// Into the counters of a benchmark with manual time: its time is ours, the baseline is
  /// next to it.
  void report(benchmark::State& state) const {
    state.SetIterationTime(ours.minimum);
    state.counters["baseline_ns"] = baseline.minimum * 1e9;
    state.counters["extra_ns"] = (ours.minimum - baseline.minimum) * 1e9;
    state.counters["extra_median_ns"] = (ours.median - baseline.median) * 1e9;
    state.counters["ratio"] = ours.minimum / baseline.minimum;
    state.counters["ratio_median"] = ours.median / baseline.median;
  }
};

/// `between` runs before each round of ours, untimed.
template <typename Baseline, typename Ours, typename Between>
Alternating alternate(int rounds, int calls, Baseline baseline, Ours ours, Between between) {
  const auto per_call = [calls](auto& body) {
    const double start = thread_seconds();
    for (int i = 0; i < calls; ++i) body();
    return (thread_seconds() - start) / calls;
  };
  std::vector<double> of_baseline;
  std::vector<double> of_ours;
  for (int round = 0; round < rounds; ++round) {
    of_baseline.push_back(per_call(baseline));
    between();
    of_ours.push_back(per_call(ours));
  }
  return {timing_of(of_baseline), timing_of(of_ours)};
}

}  // namespace trellis::benchmarks
