#include "trainer/verify/resume_check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "runtime/rendezvous/stop_request.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/training/run_checkpoints.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/data/make_data_module.h"
#include "trainer/files/checkpoint/storage/open_storage.h"
#include "trainer/loop/trainer.h"
#include "trainer/verify/compare.h"
#include "trainer/verify/resume_defects.h"

namespace trellis::trainer {
namespace {

/// See compare(): a gradient that is 0 by its formula leaves moments that are rounding alone.
constexpr double kVanishingInFp64 = 1e-6, kVanishing = 0.02;

double default_tolerance(const std::string& precision) {
  if (precision == "fp64") return 1e-10;
  return precision == "fp32" ? 1e-4 : 0.05;
}

/// Saves and restores as the run's checkpoints do, records, and puts the defect in.
class Recorded final : public TrainingCheckpoints {
 public:
  Recorded(TrainingCheckpoints& checkpoints, TrainingRecorder& recorder, const ResumeDefect* defect)
      : checkpoints_(checkpoints), recorder_(recorder), defect_(defect) {}
  std::int64_t restore(const TrainingState& state) override {
    const std::int64_t step = checkpoints_.restore(state);
    if (defect_ != nullptr && defect_->state) defect_->state(state);
    recorder_.add(state, step, nullptr);
    return step;
  }
  [[nodiscard]] std::int64_t consumed_samples(std::int64_t step) const override {
    return checkpoints_.consumed_samples(step);
  }
  void after_step(const TrainingState& state, const StepResult& result) override {
    recorder_.add(state, result.step, &result);
    checkpoints_.after_step(state, result);
  }
  void at_end(const TrainingState& state, std::int64_t step) override {
    checkpoints_.at_end(state, step);
  }

 private:
  TrainingCheckpoints& checkpoints_;
  TrainingRecorder& recorder_;
  const ResumeDefect* defect_;
};

/// One run from a beginning or a checkpoint to its end or a cut.
struct Segment {
  std::string name;
  std::int64_t cut = 0;  ///< 0: it goes to the end
  bool resumes = false, saves = false, gathers = false;
};

class ResumeCheck {
 public:
  ResumeCheck(const ResumeCheckRequest& request, const ResumeWorld& world,
              const ResumeProgress& progress)
      : request_(request), world_(world), progress_(progress) {
    if (!request.seed_bug.empty()) defect_ = &find_resume_defect(request.seed_bug);
    check_cuts();
    before_ = load(request.overrides);
    std::vector<std::string> overrides = request.overrides;
    overrides.insert(overrides.end(), request.after_cut.begin(), request.after_cut.end());
    after_ = load(overrides);
    if (before_.tp() != after_.tp()) use_one_vocabulary(overrides);
    check_batches();
    check_folder();
    result_.exact = has_same_layout();
    result_.tolerance =
        request.tolerance > 0 ? request.tolerance : default_tolerance(before_.precision.type);
    total_ = 2 * request.steps;
  }

  ResumeCheckResult run() {
    const TrainingRecord expected = record({.name = "uninterrupted", .gathers = !result_.exact});
    for (const auto& [step, recorded] : expected.steps) result_.hashes[step] = recorded.hash();
    for (std::size_t i = 0; i <= request_.cuts.size() && !result_.first; ++i) {
      const bool last = i == request_.cuts.size();
      const Segment segment{.name = last
                                        ? "resumed to the end"
                                        : fmt::format("to the cut after step {}", request_.cuts[i]),
                            .cut = last ? 0 : request_.cuts[i],
                            .resumes = i > 0,
                            .saves = !last,
                            .gathers = last && !result_.exact};
      const TrainingRecord got = record(segment);
      judge(got, expected, segment);
    }
    return std::move(result_);
  }

 private:
  void check_cuts() const {
    std::int64_t before = 0;
    for (const std::int64_t cut : request_.cuts) {
      if (cut <= before || cut >= request_.steps)
        throw ConfigError(fmt::format(
            "--cut {}: expected ascending steps from 1 to {} (--steps {} less 1), got {}",
            fmt::join(request_.cuts, ","), request_.steps - 1, request_.steps, cut));
      before = cut;
    }
    if (request_.cuts.empty()) throw ConfigError("--cut: expected at least one step, got none");
  }

  [[nodiscard]] RunConfig load(const std::vector<std::string>& overrides) const {
    RunConfig config = load_run_config(request_.config_file, overrides, request_.instance,
                                       {.steps = request_.steps, .without_progress = true});
    refuse_unsupported(config, /*simulate=*/false);
    CheckpointSection& section = config.exp_manager.checkpoints;
    section.create = section.resume_if_exists = false;
    return config;
  }

  /// Its rows are padded to a multiple of TP, and take part in the loss.
  void use_one_vocabulary(std::vector<std::string> overrides) {
    const int unit =
        before_.model.make_vocab_size_divisible_by * std::lcm(before_.tp(), after_.tp());
    const int rows =
        (std::max(before_.model.vocab_size, after_.model.vocab_size) + unit - 1) / unit * unit;
    const std::string key = "model.vocab_size=" + std::to_string(rows);
    overrides.push_back(key);
    after_ = load(overrides);
    overrides = request_.overrides;
    overrides.push_back(key);
    before_ = load(overrides);
  }

  void check_batches() const {
    if (after_.data.global_batch_size == before_.data.global_batch_size) return;
    throw ConfigError(fmt::format(
        "--after-cut data.global_batch_size={}: runs are compared step by step: expected {}, as "
        "before the cut",
        after_.data.global_batch_size, before_.data.global_batch_size));
  }

  void check_folder() const {
    const checkpoint::CheckpointFolder folder(checkpoint::open_storage(request_.folder));
    if (folder.complete().empty()) return;
    throw ConfigError("--folder " + request_.folder +
                      ": holds the checkpoints of another run: expected a new or empty folder");
  }

  [[nodiscard]] bool has_same_layout() const {
    return before_.distributed_strategy == after_.distributed_strategy &&
           before_.world_size() == after_.world_size() && before_.precision == after_.precision &&
           before_.data.micro_batch_size == after_.data.micro_batch_size &&
           before_.model == after_.model;
  }

  /// Checkpoints are saved where the run is stopped, and nowhere else.
  [[nodiscard]] RunConfig config_of(const Segment& segment) const {
    RunConfig config = segment.resumes ? after_ : before_;
    CheckpointSection& section = config.exp_manager.checkpoints;
    section.create = segment.saves;
    section.filename = "cut--{step}";
    section.monitor = "step";
    section.mode = "max";
    section.save_last = true;
    section.every_n_train_steps.reset();
    section.train_time_interval_s.reset();
    section.every_n_epochs = 0;
    auto& lora = config.model.lora;
    if (lora && !lora->load) lora->folder.clear();
    if (segment.resumes) {
      section.resume_from_checkpoint.clear();
      section.resume_if_exists = true;
      section.resume_ignore_no_checkpoint = false;
      config.model.weight_init_only = false;
    }
    return config;
  }

  TrainingRecord record(const Segment& segment) {
    RunConfig config = config_of(segment);
    const runtime::WorldOptions world = world_(config);
    std::optional<checkpoint::Resume> resume = checkpoint::find_resume(config, request_.folder);
    ResumePoint point = resume ? resume->point : ResumePoint{};
    const ResumeDefect* const defect = segment.resumes ? defect_ : nullptr;
    if (defect != nullptr && defect->data) defect->data(point);
    if (segment.cut > 0 && segment.cut <= point.step)
      throw ConfigError(
          fmt::format("--cut {}: the run itself begins after step {}", segment.cut, point.step));
    TrainingRecorder recorder(config.world_size(), segment.gathers ? request_.steps : 0);
    const auto data = recorder.watched(make_data_module(config, point));
    checkpoint::RunCheckpoints checkpoints(config, request_.folder, std::move(resume));
    Recorded recorded(checkpoints, recorder, defect);
    StopReason reason = StopReason::kMaxSteps;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      Trainer trainer(config, rank, data, {nullptr, &recorded});
      const StopReason ended = trainer.fit([&](const StepResult& step) {
        progress_(segment.name, ++done_, total_);
        if (step.step == segment.cut) runtime::request_stop();
      });
      if (rank.rank() == 0) reason = ended;
    });
    runtime::clear_stop_request();
    if (segment.cut > 0 && reason != StopReason::kInterrupted)
      throw ConfigError(fmt::format("--cut {}: the run ended before by itself ({})", segment.cut,
                                    name_of(reason)));
    return recorder.take();
  }

  void judge(const TrainingRecord& got, const TrainingRecord& expected, const Segment& segment) {
    const bool exact = result_.exact || !segment.resumes;
    result_.first = first_difference(got, expected, !exact);
    for (const auto& [step, recorded] : got.steps) {
      result_.compared += static_cast<std::int64_t>(recorded.samples.size());
      for (std::size_t rank = 0; exact && rank < recorded.tensors.size(); ++rank)
        result_.compared += static_cast<std::int64_t>(recorded.tensors[rank].size() +
                                                      recorded.numbers[rank].size());
      if (!exact && !recorded.resumed && expected.steps.contains(step))
        judge(fmt::format("loss of step {}", step),
              std::abs(recorded.loss / expected.steps.at(step).loss - 1));
    }
    if (segment.gathers) judge_tensors(got.last, expected.last);
  }

  void judge(const std::string& what, double error) {
    ++result_.compared;
    if (std::isnan(error)) error = INFINITY;
    if (!result_.worst || error > result_.worst->error) result_.worst = Closeness{what, error};
  }

  /// Kind by kind: a tensor that nearly vanishes is measured by its share of its kind.
  void judge_tensors(const NamedTensors& got, const NamedTensors& expected) {
    const double vanishing = before_.precision.type == "fp64" ? kVanishingInFp64 : kVanishing;
    std::map<std::string, std::pair<RunNumbers, RunNumbers>> kinds;
    for (const auto& [key, tensor] : expected) {
      auto& [of_got, of_expected] = kinds[kind_of(key)];
      of_expected.names.push_back(key);
      of_expected.weights[key] = tensor;
      if (const auto found = got.find(key); found != got.end()) of_got.weights[key] = found->second;
    }
    for (const auto& [kind, numbers] : kinds) {
      // Masters are of one of two precisions alone.
      if (numbers.first.weights.empty() && before_.precision != after_.precision) continue;
      for (const auto& [what, error] : errors_of(numbers.first, numbers.second, vanishing))
        judge(what, error);
    }
  }

  /// "optimizer.state.exp_avg" of its keys; "" of weights.
  static std::string kind_of(const std::string& key) {
    const std::string prefix = checkpoint::kStatePrefix;
    if (!key.starts_with(prefix)) return "";
    return key.substr(0, key.find('.', prefix.size()));
  }

  const ResumeCheckRequest& request_;
  const ResumeWorld& world_;
  const ResumeProgress& progress_;
  const ResumeDefect* defect_ = nullptr;
  RunConfig before_, after_;
  std::int64_t done_ = 0, total_ = 0;
  ResumeCheckResult result_;
};

}  // namespace

ResumeCheckResult resume_check(const ResumeCheckRequest& request, const ResumeWorld& world,
                               const ResumeProgress& progress) {
  return ResumeCheck(request, world, progress).run();
}

}  // namespace trellis::trainer
