#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

namespace trellis::sim {

/// The data that one rank moves at a save and at a load. Bytes are those of tensors: what a file's
/// container adds is less than a thousandth of them and not included.
struct RankFiles {
  std::vector<std::int64_t> files;  ///< bytes of each that it writes, in order
  std::int64_t tensors = 0;         ///< in them: each is copied separately
  std::int64_t largest_tensor = 0;  ///< bytes
  std::int64_t read_bytes = 0;      ///< of its part of all files
  std::int64_t read_files = 0;
  std::int64_t state_bytes = 0;  ///< weights and optimizer states on its device
  std::int64_t state_tensors = 0;
  [[nodiscard]] std::int64_t bytes() const;
  bool operator==(const RankFiles&) const = default;
};

/// Optimizer states that a rank copies to its host and another one writes.
struct StateGather {
  int from = 0, to = 0;
  std::int64_t bytes = 0, tensors = 0;
  bool operator==(const StateGather&) const = default;
};

/// The saves of a run as data: when, where, and what every rank writes.
struct CheckpointPlan {
  std::int64_t every_n_steps = 0;
  bool asynchronous = false;
  bool fully_parallel = false;     ///< xser: data-parallel ranks share the files of weights
  std::string storage = "nvme";    ///< load_storage
  Bytes buffer;                    ///< of an instance, for asynchronous copies; 0: host.yaml's
  std::vector<RankFiles> classes;  ///< ranks that do the same
  std::vector<int> class_of;       ///< by rank
  std::vector<StateGather> gathers;

  [[nodiscard]] const RankFiles& of(std::size_t rank) const {
    return classes.at(static_cast<std::size_t>(class_of.at(rank)));
  }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t files() const;
  [[nodiscard]] std::int64_t gathered_bytes() const;
  bool operator==(const CheckpointPlan&) const = default;
};

}  // namespace trellis::sim
