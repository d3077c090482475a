#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Something that goes wrong in a training on purpose, once, so that a user sees what follows.
struct Fault {
  enum class Kind : std::uint8_t {
    kKill,     ///< the process of the rank ends at once, as by SIGKILL
    kPreempt,  ///< the process of the rank gets SIGTERM, as from a scheduler
    kCrash,    ///< the process of the rank ends by SIGSEGV
    kHang,     ///< the rank goes on forever and never communicates again
    kOom,      ///< the rank runs out of device memory
    kFlip,     ///< a bit of a weight changes on the rank, after the step's update
    kDiskFull  ///< no file of a checkpoint that is saved at the step can be written
  };
  Kind kind = Kind::kKill;
  std::int64_t rank = 0, step = 1;
  std::string tensor;  ///< kFlip: the parameter's name
};

class FaultPlan {
 public:
  /// "kill:rank=5@step=7", "crash@step=3", "hang:rank=1@step=3", "preempt@step=3",
  /// "oom:rank=1@step=2", "flip:lm_head.weight:rank=3@step=4", "disk:full@step=6"; rank 0 where
  /// none is named. Throws ConfigError for another form, and for ranks and steps that the run does
  /// not have (`last_step` 0: any step).
  FaultPlan(const std::vector<std::string>& texts, int world_size, std::int64_t last_step);

  /// Called by each rank when it begins `step`. May not return. Throws Error (kDoesNotFit).
  void before_step(int rank, std::int64_t step) const;
  /// True if after_update() of `step` changes a weight.
  [[nodiscard]] bool flips_in(std::int64_t step) const;
  /// Called by each rank after the update of `step`. Throws ConfigError when the rank has no such
  /// weight.
  void after_update(int rank, std::int64_t step, ParameterList& parameters) const;
  /// True if the plan has a step in which the disk is full.
  [[nodiscard]] bool fills_disk() const;
  /// True if a rank of this process is in a step in which the disk is full.
  [[nodiscard]] bool is_disk_full() const;

 private:
  std::vector<Fault> faults_;
  mutable std::atomic<std::int64_t> step_ = 0;
};

}  // namespace trellis::trainer
