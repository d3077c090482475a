#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "trainer/checkpoint/engine/saver.h"
#include "trainer/checkpoint/state/load_strictness.h"
#include "trainer/checkpoint/training/adapter_loader.h"
#include "trainer/checkpoint/training/adapter_saves.h"
#include "trainer/checkpoint/training/find_resume.h"
#include "trainer/checkpoint/training/torch_dist.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/files/checkpoint/formats/native/damaged_checkpoint.h"
#include "trainer/files/checkpoint/lifecycle/checkpoint_folder.h"
#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/loop/training_checkpoints.h"

namespace trellis::checkpoint {

/// Layout of a run for the manifest: tp, pp, vpp, dp, cp, ep, zero1, kv_replicator.
[[nodiscard]] std::map<std::string, std::int64_t> layout_of(const trainer::RunConfig& config);

/// True if a run saves checkpoints, resumes from one or loads adapters; other runs need no
/// RunCheckpoints.
[[nodiscard]] bool needs_checkpoints(const trainer::RunConfig& config,
                                     const std::optional<Resume>& resume);

/// Checkpoints of a run by exp_manager's rules, one object for its ranks in a process. Processes
/// share the folder. One that cannot be written, such as on a full disk, is a warning: training
/// goes on and the next one is tried; at the end of the run it is an OutputError.
class RunCheckpoints final : public trainer::TrainingCheckpoints {
 public:
  /// `folder`: address of the run's checkpoints; nothing is written there without
  /// create_checkpoint_callback. Removes what interrupted saves left there. `link`: the other
  /// processes; null: there are none. Throws ConfigError for a file name that cannot be made, and
  /// for adapters as AdapterLoader. `self`: whose checkpoints are removed when newer ones come; a
  /// run that goes on from the folder's newest one (resume_if_exists) is the run of that one.
  /// REQUIRES: no other run saves into the folder (RunLock).
  RunCheckpoints(const trainer::RunConfig& config, const std::string& folder,
                 std::optional<Resume> resume, runtime::ProcessLink* link = nullptr,
                 RunIdentity self = {});
  ~RunCheckpoints() override;

  /// Where they are saved. REQUIRES: create_checkpoint_callback.
  [[nodiscard]] Storage& storage() { return folder_->storage(); }

  /// Called by rank 0 before each save; what it throws ends the run.
  void set_before_save(std::function<void()> check) { before_save_ = std::move(check); }

  std::int64_t restore(const trainer::TrainingState& state) override;
  /// The damaged checkpoint that ended restore(), on whichever rank; after all ranks have ended.
  [[nodiscard]] const std::optional<native::DamagedCheckpoint>& damage() const { return damage_; }
  [[nodiscard]] std::int64_t consumed_samples(std::int64_t step) const override;
  void after_step(const trainer::TrainingState& state, const trainer::StepResult& result) override;
  void at_end(const trainer::TrainingState& state, std::int64_t step) override;

 private:
  using Clock = std::chrono::steady_clock;
  void restore_training(const trainer::TrainingState& state);
  void continue_foreign(const trainer::TrainingState& state) const;
  /// How long each part of it took, until now.
  void log_recovery(Clock::time_point begin, Clock::time_point loaded) const;
  [[nodiscard]] bool is_due(const trainer::TrainingState& state, std::int64_t step);
  /// Rank 0's decision, for all.
  [[nodiscard]] bool decide(const trainer::TrainingState& state, std::int64_t step);
  void refuse_without_number(std::int64_t step);
  [[nodiscard]] bool has_last(std::int64_t step) const;
  /// Rank 0's answer, for all; only rank 0 asks, when no save is under way.
  [[nodiscard]] bool from_first(const trainer::TrainingState& state,
                                const std::function<bool()>& ask);
  void save(const trainer::TrainingState& state, std::int64_t step, bool last);
  /// The head of a save, without a tag and a number in the order of saves.
  [[nodiscard]] native::SaveHead content(const trainer::TrainingState& state,
                                         std::int64_t step) const;
  [[nodiscard]] native::SaveHead head(const trainer::TrainingState& state, std::int64_t step,
                                      bool last);
  [[nodiscard]] std::string name_of(std::int64_t step, std::int64_t epoch) const;
  [[nodiscard]] std::optional<double> metric(std::int64_t step, std::int64_t epoch) const;
  /// `replaced`: tags of older ones of the same name.
  void complete(const KeptCheckpoint& checkpoint, bool last,
                const std::vector<std::string>& replaced);
  void failed(const KeptCheckpoint& checkpoint, const std::string& reason);

  const trainer::RunConfig& config_;
  const trainer::CheckpointSection& section_;
  std::string pattern_;
  std::string run_;  ///< RunIdentity's
  KeepRule rule_;
  std::optional<Resume> resume_;
  NameUnion names_;
  trainer::ResumePoint resume_point_;
  std::optional<CheckpointFolder> folder_;
  std::optional<native::Saver> saver_;    ///< after folder_, which its thread uses
  std::optional<AdapterLoader> adapter_;  ///< load_lora_from_ckpt, unless a training goes on
  std::optional<AdapterSaves> adapter_saves_;
  std::function<void()> before_save_;
  std::optional<Place> one_device_;  ///< with merge_sharded_lora, in place of those
  // Written by what ends a save, of the run's first process.
  std::int64_t last_saved_ = -1;    ///< step of the newest "-last" copy
  std::string torch_dist_failure_;  ///< why the save that ends has none; "": it has
  std::string failure_;             ///< why the last save is incomplete; "": it is not
  // Written by the first rank of the process between barriers.
  Clock::time_point opened_ = Clock::now();
  Clock::time_point last_save_time_ = Clock::now();
  std::mutex mutex_;
  std::optional<native::DamagedCheckpoint> damage_;
  std::map<std::string, double> scalars_;  ///< of the last step that had each
  bool said_no_number_ = false;            ///< of rank 0
  double lr_ = 0;
};

}  // namespace trellis::checkpoint
