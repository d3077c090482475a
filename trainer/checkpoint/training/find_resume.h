#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/engine/loader.h"
#include "trainer/checkpoint/state/load_strictness.h"
#include "trainer/checkpoint/training/source_loader.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"

namespace trellis::checkpoint {

/// A checkpoint that a run begins with.
struct Resume {
  std::unique_ptr<native::Loader> loader = {};  ///< null: `foreign`
  std::unique_ptr<SourceLoader> foreign = {};   ///< of another program's format
  trainer::ResumePoint point = {};  ///< where the data go on: 0, 0 with model.weight_init_only
  /// Schedule of `foreign`, when it has one that is more than a function of the step.
  std::optional<trainer::LrScheduler::State> schedule = {};
};

/// The checkpoint that exp_manager asks a run to begin with: resume_from_checkpoint (a checkpoint
/// of any format, or a folder of which the newest complete one is taken) before resume_if_exists
/// (the newest complete one of `folder`, the run's own). A training continues from another
/// program's checkpoint when it has the optimizer's states; with model.weight_init_only the weights
/// are enough. None: a new training. Throws ConfigError when there is nothing to resume and
/// resume_ignore_no_checkpoint is false (if it is true, there is a warning), and for a checkpoint
/// of another model (model_check.h).
[[nodiscard]] std::optional<Resume> find_resume(const trainer::RunConfig& config,
                                                const std::string& folder);

/// As the checkpoint says, or step × data.global_batch_size, with a warning, when it does not say.
[[nodiscard]] std::int64_t consumed_samples_of(const TensorSource& source,
                                               const trainer::RunConfig& config);

/// Collective: fills tensors of a rank from the checkpoint. Throws ConfigError with every tensor
/// that is missing or does not fit.
void load(const Resume& resume, runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
          Readers readers = Readers::kOne);
/// Collective: before that. Throws ConfigError with the weights of the checkpoint that no rank
/// asks for, unless exp_manager.accept_differences has them.
void refuse_unused_weights(const Resume& resume, runtime::RankContext& rank, NameUnion& names,
                           const std::vector<LiveTensor>& wanted, const trainer::RunConfig& config);
/// The keys that it has.
[[nodiscard]] std::map<std::string, DType> stored_types(const Resume& resume);
/// Where it was found.
[[nodiscard]] const std::string& address_of(const Resume& resume);

}  // namespace trellis::checkpoint
