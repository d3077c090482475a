#pragma once

#include <string_view>
#include <vector>

#include "sim/config/storage_config.h"
#include "sim/storage/checkpoint_plan.h"

/// How long saves and loads take. A save has three parts on every rank: its tensors are copied to
/// the host (host DMA engines of the chip, the host's memory shared by the instance; states that
/// another rank writes go on to its host, through memory or its instance's NICs), the files ask
/// for their round trips, their bytes go to the storage (a rank's connections, the instance's rate,
/// the rate of all). Bytes share each of these limits fairly; the round trips of a rank come before
/// its bytes.
namespace trellis::sim {

/// A run on a machine with its storage.
struct StorageMachine {
  const SystemConfig& system;
  const StorageConfig& storage;
  const HostCosts& host;
  std::vector<int> cores;  ///< by rank: its logical core, counted through the cluster
};

/// Times of one rank, from the begin of the save.
struct RankSave {
  Picoseconds copied;  ///< its states are in host memory
  Picoseconds write_start, written;
  bool operator==(const RankSave&) const = default;
};

struct SaveTiming {
  std::vector<RankSave> ranks;
  Picoseconds begun;       ///< the first rank has written the marks of a save under way
  Picoseconds gathered;    ///< states are on the hosts of the ranks that write them
  Picoseconds copied;      ///< by all ranks: an asynchronous save lets training go on
  Picoseconds complete;    ///< with the marks of completeness
  std::string_view limit;  ///< what holds the writing down most
  Bytes buffer;            ///< host memory that copies take, of the fullest instance
  Bytes buffer_cap;        ///< the most that they may take
};
[[nodiscard]] SaveTiming time_save(const CheckpointPlan& plan, const StorageMachine& machine);

/// The time that training waits at each save when it computes for `interval` between two of them.
struct ExposedSave {
  Picoseconds previous;  ///< until the previous save is complete; asynchronous ones only
  Picoseconds own;       ///< the save itself, or its copy to the host
  [[nodiscard]] Picoseconds total() const { return previous + own; }
};
[[nodiscard]] ExposedSave exposed_time(const SaveTiming& save, bool asynchronous,
                                       Picoseconds interval);

/// Files to the host, then the states to the devices.
struct LoadTiming {
  Picoseconds read, copied;
  [[nodiscard]] Picoseconds total() const { return read + copied; }
};
[[nodiscard]] LoadTiming time_load(const CheckpointPlan& plan, const StorageMachine& machine);

}  // namespace trellis::sim
