#include "trainer/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>

#include <nlohmann/json.hpp>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/process/parallel_for.h"
#include "sim/config/default_instance.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/data/make_data_module.h"
#include "trainer/verify/seeded_bugs.h"
#include "trainer/verify/tolerance.h"
#include "trainer/verify/verify_journal.h"

namespace trellis::trainer {
namespace {

/// See compare(): what is left of a gradient that is 0 by its formula is far below this in fp64; in
/// half precision it is not.
constexpr double kVanishingInFp64 = 1e-6, kVanishing = 0.02;

/// Throws ConfigError for routers whose result depends on the tokens with which a rank's own were
/// shuffled: one rank sees them unshuffled.
void refuse_shuffled_statistics(const RunConfig& config) {
  const int group = config.distributed_strategy.token_shuffle_group_size;
  if (group == 1 || !config.model.moe) return;
  const MoeSection& moe = *config.model.moe;
  std::string key;
  if (moe.output_router_logits && moe.router_aux_loss_coef != 0)
    key = "router_aux_loss_coef: expected 0";
  if (moe.capacity_factor.value_or(0) > 0) key = "capacity_factor: expected 0";
  if (moe.routing_algorithm == "sinkhorn") key = "routing_algorithm: expected top_k";
  if (key.empty()) return;
  throw ConfigError("model.moe." + key + " with token_shuffle_group_size " + std::to_string(group) +
                    " to compare with one rank, which has no one to shuffle with");
}

class Verification {
 public:
  Verification(const VerifyRequest& request, const VerifyWorld& world)
      : request_(request), filter_(request.layouts) {
    if (!request.seed_bug.empty()) bug_ = &find_seeded_bug(request.seed_bug);
    const RunConfig base = load(Layout{}, "");
    num_layers_ = base.model.num_layers;
    axes_.experts = base.model.moe ? base.model.moe->num_experts : 0;
    axes_.ring_attention = base.model.ring_attention;
    axes_.sliding_window = base.model.sliding_window.has_value();
    result_.precision = base.precision.type;
    if (axes_.experts > 0 && result_.precision != "fp64")
      result_.why_fp64_only = "a rounding may send a token to another expert, which is no error";
    const int unit = base.model.make_vocab_size_divisible_by * request.ranks;
    result_.vocab_size = (base.model.vocab_size + unit - 1) / unit * unit;
    one_rank_.host_threads = request.host_threads;
    machine_ = world(base);
    if (!request.shard.empty()) shard_ = parse_shard(request.shard);
    open_journal(base);
    choose();
  }

  VerifyResult run(const VerifyProgress& notify) {
    const bool in_both = result_.precision != "fp64" && result_.why_fp64_only.empty();
    std::vector<LayoutResult*> legal;
    std::vector<LayoutResult> configured;
    for (LayoutResult& result : result_.layouts) {
      if (!result.why_illegal.empty()) continue;
      legal.push_back(&result);
      if (in_both && result.layout.recompute == Recompute::kNone)
        configured.push_back({result.layout, result_.precision, {}, {}});
    }
    std::vector<LayoutResult*> rounded;
    for (LayoutResult& result : configured) rounded.push_back(&result);
    result_.derived = journal_.derived();
    take_finished(legal);
    take_finished(rounded);
    run_rest(legal, rounded, notify);
    std::ranges::move(configured, std::back_inserter(result_.layouts));
    return std::move(result_);
  }

 private:
  struct Progress {
    const VerifyProgress& notify;
    int done = 0, of = 0;
  };

  /// The configuration in a layout; `precision` "" leaves it.
  [[nodiscard]] RunConfig load(const Layout& layout, const std::string& precision) const {
    std::vector<std::string> overrides = request_.overrides;
    for (std::string& one : overrides_of(layout)) overrides.push_back(std::move(one));
    if (layout.dp == 1)  // nothing to shuffle with, and the same numbers
      overrides.emplace_back("distributed_strategy.token_shuffle_group_size=1");
    if (result_.vocab_size > 0)
      overrides.push_back("model.vocab_size=" + std::to_string(result_.vocab_size));
    if (!precision.empty()) {
      overrides.push_back("precision=null");
      overrides.push_back("precision.type=" + precision);
    }
    RunConfig config = load_run_config(request_.config_file, overrides, sim::kTrainingInstance,
                                       {.steps = request_.steps});
    refuse_unsupported(config, /*simulate=*/true);  // checkpoints play no part here either
    refuse_shuffled_statistics(config);
    if (!machine_.hardware.empty()) config.hardware = machine_.hardware;
    config.trainer.limit_val_batches = BatchCount{.count = 0, .fraction = {}};
    config.trainer.num_sanity_val_steps = 0;
    config.exp_manager.early_stopping.reset();
    return config;
  }

  /// Settings on which the results depend.
  [[nodiscard]] nlohmann::json facts_of(const RunConfig& base) const {
    ContentHasher configuration;
    configuration.text(base.resolved_yaml);
    return {{"--layouts", request_.layouts},
            {"--ranks", std::to_string(request_.ranks)},
            {"--steps", std::to_string(request_.steps)},
            {"--tolerance", c10::str(request_.tolerance)},
            {"--device", request_.device},
            {"--device-library", request_.device_library},
            {"--device-plugin", request_.device_plugin},
            {"--backend", request_.backend},
            {"--instance", request_.device == "cpu" ? "none" : request_.instance},
            {"--seed-bug", request_.seed_bug.empty() ? "none" : request_.seed_bug},
            {"hash of the resolved configuration", configuration.finish().to_string()}};
  }

  void open_journal(const RunConfig& base) {
    if (!request_.merge.empty()) {
      journal_ = VerifyJournal(request_, facts_of(base));
    } else if (!request_.out.empty()) {
      journal_ = VerifyJournal(request_, shard_, facts_of(base));
    }
  }

  void choose() {
    std::size_t place = 0;
    int num_legal = 0;
    for (const Layout& layout : all_layouts(request_.ranks, num_layers_, axes_)) {
      if (!filter_.chooses(layout)) continue;
      LayoutResult result{layout, "fp64", {}, {}};
      try {
        const RunConfig config = load(layout, "fp64");
        if (bug_ != nullptr && !bug_->can_show(layout, config)) continue;
        ++num_legal;
        if (layout.recompute == Recompute::kNone) with_zero1_.insert(layout.zero1);
      } catch (const ConfigError& error) {
        result.why_illegal = error.what();
      }
      if (shard_.has(place++)) result_.layouts.push_back(std::move(result));
    }
    if (num_legal > 0) return;
    throw ConfigError(
        "--layouts " + request_.layouts + " on " + std::to_string(request_.ranks) +
        " ranks: no layout is legal for " + request_.config_file +
        (bug_ != nullptr ? " and can show " + bug_->name + ": " + bug_->description : "") +
        first_reason());
  }

  [[nodiscard]] std::string first_reason() const {
    if (result_.layouts.empty()) return "";
    return "; " + to_string(result_.layouts.front().layout) + ": " +
           result_.layouts.front().why_illegal;
  }

  /// The order of samples is the data's; only how many ranks share them differs.
  std::shared_ptr<const DataModule> data_of(const RunConfig& config) {
    const std::lock_guard lock(data_mutex_);
    auto& data = data_by_dp_[config.dp()];
    if (!data) data = make_data_module(config);
    return data;
  }

  /// One CPU rank; of `layout` only ZeRO-1 matters, without which the configured precision keeps no
  /// masters.
  RunNumbers reference(const Layout& layout, const std::string& precision,
                       const RunChanges& changes = {}) {
    const RunConfig config = load(Layout{.zero1 = layout.zero1}, precision);
    return train_and_gather(config, data_of(config), changes, one_rank_);
  }

  RunNumbers numbers_of(const Layout& layout, const std::string& precision) {
    const RunConfig config = load(layout, precision);
    return train_and_gather(config, data_of(config), bug_ != nullptr ? bug_->changes : RunChanges{},
                            machine_.world);
  }

  /// By what is compared, for layouts with ZeRO-1 or without.
  void derive_tolerances(bool zero1, const RunNumbers& expected) {
    Errors& tolerances = derived_[zero1];
    const double rounding = unit_roundoff(load(Layout{}, "").precision);
    std::vector<Errors> runs;
    for (int run = 0; run < kRoundingRuns; ++run) {
      const RunChanges changes = rounded_otherwise(run, rounding);
      runs.push_back(
          errors_of(reference(Layout{.zero1 = zero1}, "", changes), expected, kVanishing));
    }
    const Errors noise = noise_of(runs);
    DerivedTolerances& all = result_.derived;
    all.times_the_noise = times_the_noise(static_cast<std::int64_t>(noise.size()));
    for (const auto& [what, size] : noise) {
      const double wanted = std::max(all.times_the_noise * size, rounding);
      const double tolerance = std::min(wanted, kLargestTolerance);
      all.smallest = all.largest == 0 ? tolerance : std::min(all.smallest, tolerance);
      all.largest = std::max(all.largest, tolerance);
      all.num_capped += wanted > tolerance ? 1 : 0;
      tolerances[what] = tolerance;
    }
  }

  /// Leaves in `all` what the journal does not have.
  void take_finished(std::vector<LayoutResult*>& all) {
    std::erase_if(all, [&](LayoutResult* result) {
      result->comparison = journal_.find(result->layout, result->precision);
      return result->comparison.has_value();
    });
  }

  void run_rest(const std::vector<LayoutResult*>& legal, const std::vector<LayoutResult*>& rounded,
                const VerifyProgress& notify) {
    if (legal.empty() && rounded.empty()) return;
    if (!request_.merge.empty()) throw_unfinished(legal.size() + rounded.size());
    const RunNumbers expected = reference(Layout{}, "fp64");
    Progress progress{notify, 0, static_cast<int>(legal.size() + rounded.size())};
    const auto fixed = [this](const std::string&) { return request_.tolerance; };
    run_side_by_side(legal, progress, [&](LayoutResult& result) {
      result.comparison =
          compare(numbers_of(result.layout, "fp64"), expected, kVanishingInFp64, fixed);
    });
    run_configured(rounded, expected, progress);
  }

  [[noreturn]] void throw_unfinished(std::size_t count) const {
    throw ConfigError(std::to_string(count) +
                      " layouts have no result yet: run the unfinished shards again with their "
                      "command, they go on");
  }

  void run_configured(const std::vector<LayoutResult*>& rounded, const RunNumbers& expected,
                      Progress& progress) {
    if (rounded.empty()) return;
    result_.derived = {};  // equal in each shard, and when one goes on
    for (const bool zero1 : with_zero1_) derive_tolerances(zero1, expected);
    journal_.add(result_.derived);
    run_side_by_side(rounded, progress, [&](LayoutResult& result) {
      const Errors& tolerances = derived_.at(result.layout.zero1);
      const auto derived = [&](const std::string& what) {
        const auto found = tolerances.find(what);
        return found == tolerances.end() ? kLargestTolerance : found->second;
      };
      result.comparison = compare(numbers_of(result.layout, ""), expected, kVanishing, derived);
    });
  }

  /// Runs as many layouts at a time as the machine allows: no layout depends on another.
  void run_side_by_side(const std::vector<LayoutResult*>& all, Progress& progress,
                        const std::function<void(LayoutResult&)>& run) {
    parallel_for(
        all.size(), static_cast<std::size_t>(std::max(1, machine_.layouts_at_once)),
        [&](std::size_t i) { run(*all[i]); },
        [&](std::size_t i) {
          journal_.add(*all[i]);
          progress.notify(*all[i], ++progress.done, progress.of);
        });
  }

  const VerifyRequest& request_;
  LayoutFilter filter_;
  const SeededBug* bug_ = nullptr;
  ModelAxes axes_;
  int num_layers_ = 0;
  Shard shard_;
  VerifyJournal journal_;
  runtime::WorldOptions one_rank_;
  VerifyMachine machine_;
  std::mutex data_mutex_;
  std::map<int, std::shared_ptr<const DataModule>> data_by_dp_;
  std::set<bool> with_zero1_;  ///< of the layouts of all shards that run in both precisions
  std::map<bool, Errors> derived_;
  VerifyResult result_;
};

}  // namespace

int VerifyResult::num_failed() const {
  return static_cast<int>(
      std::ranges::count_if(layouts, [](const LayoutResult& result) { return !result.passed(); }));
}

int VerifyResult::num_run() const {
  return static_cast<int>(std::ranges::count_if(
      layouts, [](const LayoutResult& result) { return result.comparison.has_value(); }));
}

VerifyResult verify(const VerifyRequest& request, const VerifyWorld& world,
                    const VerifyProgress& progress) {
  return Verification(request, world).run(progress);
}

}  // namespace trellis::trainer
