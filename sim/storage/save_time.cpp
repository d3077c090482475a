#include "sim/storage/save_time.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "base/check.h"
#include "sim/storage/fair_share.h"

namespace trellis::sim {
namespace {

// Small files of the first rank: the marks of a save that is under way before the others begin,
// and user content, manifest and marks of completeness when they have ended.
constexpr int kFilesBefore = 2, kFilesAfter = 4;

/// Millionths of a request: rates of sharing are whole numbers.
constexpr std::int64_t kMicro = 1'000'000;

std::int64_t whole(BytesPerSecond rate) { return static_cast<std::int64_t>(rate.value); }

using Amount = std::function<std::int64_t(std::size_t rank)>;

class Model {
 public:
  Model(const CheckpointPlan& plan, const StorageMachine& machine)
      : plan_(plan), machine_(machine), storage_(machine.storage), received_(machine.cores.size()) {
    TRELLIS_CHECK(plan.class_of.size() == machine.cores.size(), "a core for each rank of the plan");
    for (std::size_t rank = 0; rank < ranks(); ++rank) ranks_of_node_[node(rank)].push_back(rank);
    for (const StateGather& gather : plan.gathers)
      received_[static_cast<std::size_t>(gather.to)] += gather.bytes;
  }

  [[nodiscard]] std::size_t ranks() const { return machine_.cores.size(); }
  [[nodiscard]] int node(std::size_t rank) const {
    return machine_.cores[rank] / machine_.system.logical_cores_per_node();
  }
  [[nodiscard]] int chip(std::size_t rank) const {
    return machine_.cores[rank] / machine_.system.logical_cores_per_chip();
  }

  /// Between device and host, of all ranks from `start` on; `left`: SharedTime::marked is when so
  /// much is not yet copied.
  [[nodiscard]] std::vector<SharedTime> copy(Picoseconds start, const Amount& bytes,
                                             const Amount& tensors, const Amount& left) const {
    const ChipConfig& chip_config = machine_.system.chip;
    const std::int64_t engine = whole(chip_config.host_dma_rate);
    const ShareLimits limits{engine, engine * chip_config.host_dma_engines,
                             whole(machine_.host.copy_rate)};
    std::vector<SharedTime> times(ranks());
    for (const auto& [unused, of_node] : ranks_of_node_) {
      std::vector<ShareFlow> flows;
      for (const std::size_t rank : of_node) {
        const Picoseconds begin = start + chip_config.host_write_latency * tensors(rank);
        flows.push_back({chip(rank), bytes(rank), begin, left(rank)});
      }
      const std::vector<SharedTime> shared = share_fairly(flows, limits);
      for (std::size_t i = 0; i < of_node.size(); ++i) times[of_node[i]] = shared[i];
    }
    return times;
  }

  /// The bytes that a rank copies off its own device: its files without what it receives from
  /// others, and what it copies for others.
  [[nodiscard]] std::vector<std::int64_t> copied_bytes() const {
    std::vector<std::int64_t> bytes(ranks());
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      // Equal ranks that a simulation folds count as many rows of padding as one of them.
      bytes[rank] = std::max<std::int64_t>(0, plan_.of(rank).bytes() - received_[rank]);
    }
    for (const StateGather& gather : plan_.gathers)
      bytes[static_cast<std::size_t>(gather.from)] += gather.bytes;
    return bytes;
  }
  [[nodiscard]] std::vector<std::int64_t> copied_tensors() const {
    std::vector<std::int64_t> tensors(ranks());
    for (std::size_t rank = 0; rank < ranks(); ++rank) tensors[rank] = plan_.of(rank).tensors;
    for (const StateGather& gather : plan_.gathers)
      tensors[static_cast<std::size_t>(gather.from)] += gather.tensors;
    return tensors;
  }

  /// States go from host to host, each when it is copied: through the memory of the instance, or
  /// the NICs of the one that receives. Returns for each rank when all that it sends and receives
  /// has arrived.
  [[nodiscard]] std::vector<Picoseconds> gather(const std::vector<SharedTime>& copied) const {
    const InstanceConfig& instance = machine_.system.instance;
    const std::int64_t network = whole(instance.efa.bandwidth * instance.efa_nics *
                                       machine_.system.collectives.efa_efficiency);
    std::vector<Picoseconds> arrived(ranks());
    for (const bool is_local : {true, false}) {
      std::vector<const StateGather*> gathers;
      std::vector<ShareFlow> flows;
      for (const StateGather& gather : plan_.gathers) {
        const auto from = static_cast<std::size_t>(gather.from),
                   to = static_cast<std::size_t>(gather.to);
        if ((node(from) == node(to)) != is_local) continue;
        gathers.push_back(&gather);
        flows.push_back({node(to), gather.bytes,
                         copied[from].end + (is_local ? Picoseconds() : instance.efa.latency)});
      }
      if (flows.empty()) continue;
      const auto times =
          share_fairly(flows, {0, is_local ? whole(machine_.host.copy_rate) : network, 0});
      for (std::size_t i = 0; i < flows.size(); ++i) {
        for (const int rank : {gathers[i]->from, gathers[i]->to}) {
          Picoseconds& last = arrived[static_cast<std::size_t>(rank)];
          last = std::max(last, times[i].end);
        }
      }
    }
    return arrived;
  }

  struct Side {
    const StorageSide& rates;
    Amount bytes, requests, round_trips, left;
    std::function<Picoseconds(std::size_t)> start;
  };

  /// Between host and storage: the requests' own time, then the bytes.
  [[nodiscard]] std::vector<SharedTime> transfer(const Side& side) const {
    std::vector<ShareFlow> requests, flows;
    for (std::size_t rank = 0; rank < ranks(); ++rank)
      requests.push_back({node(rank), side.requests(rank) * kMicro, side.start(rank)});
    const auto rate = static_cast<std::int64_t>(side.rates.requests_per_second * kMicro);
    std::vector<SharedTime> asked(ranks());
    if (rate > 0) asked = share_fairly(requests, {0, 0, rate});
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const Picoseconds alone = side.start(rank) + side.rates.file_latency * side.round_trips(rank);
      flows.push_back(
          {node(rank), side.bytes(rank), std::max(alone, asked[rank].end), side.left(rank)});
    }
    return share_fairly(flows, {whole(storage_.rank_rate(side.rates)), whole(side.rates.node),
                                whole(side.rates.cluster)});
  }

  [[nodiscard]] std::int64_t sum_files(std::size_t rank,
                                       std::int64_t (StorageConfig::*count)(std::int64_t)
                                           const) const {
    std::int64_t sum = 0;
    for (const std::int64_t bytes : plan_.of(rank).files) sum += (storage_.*count)(bytes);
    return sum;
  }

  [[nodiscard]] Bytes buffer_cap() const {
    if (plan_.buffer.value > 0) return plan_.buffer;
    const auto memory = static_cast<double>(machine_.system.instance.host_memory.value);
    return Bytes(static_cast<std::int64_t>(memory * machine_.host.buffer_share));
  }

  /// The bytes of an asynchronous save's files that a rank cannot copy before some are written.
  /// States of others arrive whatever the cap.
  [[nodiscard]] std::int64_t beyond_buffer(std::size_t rank) const {
    if (!plan_.asynchronous || received_[rank] > 0) return 0;
    return std::max<std::int64_t>(0, plan_.of(rank).bytes() - buffer_of(rank));
  }

  /// The part of the cap that a rank has.
  [[nodiscard]] std::int64_t buffer_of(std::size_t rank) const {
    return buffer_cap().value / static_cast<std::int64_t>(ranks_of_node_.at(node(rank)).size());
  }

  [[nodiscard]] Bytes buffer_used() const {
    std::int64_t most = 0;
    for (const auto& [unused, of_node] : ranks_of_node_) {
      std::int64_t sum = 0;
      for (const std::size_t rank : of_node) {
        const RankFiles& files = plan_.of(rank);
        if (received_[rank] > 0)
          sum += files.bytes();
        else
          sum +=
              plan_.asynchronous ? std::min(files.bytes(), buffer_of(rank)) : files.largest_tensor;
      }
      most = std::max(most, sum);
    }
    return Bytes(most);
  }

  /// Names the largest of the times that each limit alone would ask for.
  [[nodiscard]] std::string_view limit() const {
    const StorageSide& side = storage_.write;
    double rank_bytes = 0, node_bytes = 0, all = 0, requests = 0, trips = 0;
    for (const auto& [unused, of_node] : ranks_of_node_) {
      double sum = 0;
      for (const std::size_t rank : of_node) {
        const auto bytes = static_cast<double>(plan_.of(rank).bytes());
        sum += bytes;
        rank_bytes = std::max(rank_bytes, bytes);
        requests += static_cast<double>(sum_files(rank, &StorageConfig::requests));
        trips = std::max(trips, static_cast<double>(sum_files(rank, &StorageConfig::round_trips)));
      }
      node_bytes = std::max(node_bytes, sum);
      all += sum;
    }
    const auto over = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
    const std::array<std::pair<std::string_view, double>, 5> times{
        {{"the connections of a rank", rank_bytes / storage_.rank_rate(side).value},
         {"the rate of an instance", node_bytes / side.node.value},
         {"the rate of all instances together", over(all, side.cluster.value)},
         {"the requests per second", over(requests, side.requests_per_second)},
         {"the latency of files", trips * to_seconds(side.file_latency)}}};
    return std::max_element(times.begin(), times.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }

 private:
  const CheckpointPlan& plan_;
  const StorageMachine& machine_;
  const StorageConfig& storage_;
  std::vector<std::int64_t> received_;  ///< by rank: states of others
  std::map<int, std::vector<std::size_t>> ranks_of_node_;
};

}  // namespace

SaveTiming time_save(const CheckpointPlan& plan, const StorageMachine& machine) {
  const Model model(plan, machine);
  SaveTiming save;
  save.begun = machine.storage.write.file_latency * kFilesBefore;
  const auto bytes = [&](std::size_t rank) { return plan.of(rank).bytes(); };
  const std::vector<std::int64_t> copied_bytes = model.copied_bytes(),
                                  copied_tensors = model.copied_tensors();
  // Bytes that a rank has left when its buffer, smaller than its files, is full the first time.
  const auto beyond_buffer = [&](std::size_t rank) { return model.beyond_buffer(rank); };
  const std::vector<SharedTime> copied = model.copy(
      save.begun, [&](std::size_t rank) { return copied_bytes[rank]; },
      [&](std::size_t rank) { return copied_tensors[rank]; }, beyond_buffer);
  const std::vector<Picoseconds> arrived = model.gather(copied);
  const auto buffer_left = [&](std::size_t rank) {
    return beyond_buffer(rank) > 0 ? model.buffer_of(rank) : 0;
  };
  const auto start = [&](std::size_t rank) {
    return beyond_buffer(rank) > 0 ? copied[rank].marked
                                   : std::max(copied[rank].end, arrived[rank]);
  };
  const std::vector<SharedTime> written = model.transfer(
      {machine.storage.write, bytes,
       [&](std::size_t rank) { return model.sum_files(rank, &StorageConfig::requests); },
       [&](std::size_t rank) { return model.sum_files(rank, &StorageConfig::round_trips); },
       buffer_left, start});
  save.copied = save.complete = save.begun;
  for (std::size_t rank = 0; rank < model.ranks(); ++rank) {
    RankSave of_rank{std::max(copied[rank].end, arrived[rank]), start(rank), written[rank].end};
    if (beyond_buffer(rank) > 0) of_rank.copied = std::max(of_rank.copied, written[rank].marked);
    save.gathered = std::max(save.gathered, arrived[rank]);
    save.copied = std::max(save.copied, of_rank.copied);
    save.complete = std::max(save.complete, of_rank.written);
    save.ranks.push_back(of_rank);
  }
  save.complete += machine.storage.write.file_latency * kFilesAfter;
  save.limit = model.limit();
  save.buffer = model.buffer_used();
  save.buffer_cap = model.buffer_cap();
  return save;
}

ExposedSave exposed_time(const SaveTiming& save, bool asynchronous, Picoseconds interval) {
  if (!asynchronous) return {Picoseconds(), save.complete};
  return {std::max(Picoseconds(), save.complete - save.copied - interval), save.copied};
}

LoadTiming time_load(const CheckpointPlan& plan, const StorageMachine& machine) {
  const Model model(plan, machine);
  // Every file is hashed before its tensors are read.
  const std::int64_t passes = machine.storage.page_cache ? 1 : 2;
  const auto files = [&](std::size_t rank) { return plan.of(rank).read_files * passes; };
  const auto none = [](std::size_t) { return std::int64_t{0}; };
  const std::vector<SharedTime> read = model.transfer(
      {machine.storage.read, [&](std::size_t rank) { return plan.of(rank).read_bytes * passes; },
       files, files, none, [](std::size_t) { return Picoseconds(); }});
  const std::vector<SharedTime> copied = model.copy(
      Picoseconds(), [&](std::size_t rank) { return plan.of(rank).state_bytes; },
      [&](std::size_t rank) { return plan.of(rank).state_tensors; }, none);
  LoadTiming load;
  for (std::size_t rank = 0; rank < model.ranks(); ++rank) {
    load.read = std::max(load.read, read[rank].end);
    load.copied = std::max(load.copied, copied[rank].end);
  }
  return load;
}

}  // namespace trellis::sim
