#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/formats/native/loader.h"
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
  /// Of `foreign`, when it has one that is more than a function of the step.
  std::optional<trainer::LrScheduler::State> schedule = {};
};

/// What exp_manager asks for: resume_from_checkpoint (a checkpoint of any format, or a folder of
/// which the newest complete one is taken) before resume_if_exists (the newest complete one of
/// `folder`, the run's own). A training goes on from another program's checkpoint when it has the
/// optimizer's states; with model.weight_init_only the weights are enough. None: a new training.
/// Throws ConfigError when there is nothing to resume and resume_ignore_no_checkpoint is false;
/// with it there is a warning.
[[nodiscard]] std::optional<Resume> find_resume(const trainer::RunConfig& config,
                                                const std::string& folder);

/// As the checkpoint says, or step × data.global_batch_size, with a warning, when it does not say.
[[nodiscard]] std::int64_t consumed_samples_of(const TensorSource& source,
                                               const trainer::RunConfig& config);

/// Collective: fills tensors of a rank from the checkpoint. Throws ConfigError with every tensor
/// that is missing or does not fit.
void load(const Resume& resume, runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
          Readers readers = Readers::kOne);
/// Where it was found.
[[nodiscard]] const std::string& address_of(const Resume& resume);

}  // namespace trellis::checkpoint
