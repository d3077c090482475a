#include "trainer/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>

#include "base/error.h"
#include "trainer/verify/in_order.h"
#include "trainer/verify/seeded_bugs.h"
#include "trainer/verify/tolerance.h"

namespace trellis::trainer {
namespace {

/// See compare(): what is left of a gradient that is 0 by its formula is far below this in fp64; in
/// half precision it is not.
constexpr double kVanishingInFp64 = 1e-6, kVanishing = 0.02;

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
    choose();
  }

  VerifyResult run(const VerifyProgress& notify) {
    const RunNumbers expected = reference(Layout{}, "fp64");
    const auto fixed = [this](const std::string&) { return request_.tolerance; };
    const bool in_both = result_.precision != "fp64" && result_.why_fp64_only.empty();
    Progress progress{notify, 0, num_legal_ + (in_both ? num_without_recompute_ : 0)};
    std::vector<LayoutResult*> legal;
    for (LayoutResult& result : result_.layouts) {
      if (result.why_illegal.empty()) legal.push_back(&result);
    }
    run_side_by_side(legal, progress, [&](LayoutResult& result) {
      result.comparison =
          compare(numbers_of(result.layout, "fp64"), expected, kVanishingInFp64, fixed);
    });
    if (in_both) run_configured(expected, progress);
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
    if (result_.vocab_size > 0)
      overrides.push_back("model.vocab_size=" + std::to_string(result_.vocab_size));
    if (!precision.empty()) {
      overrides.push_back("precision=null");
      overrides.push_back("precision.type=" + precision);
    }
    RunConfig config = load_run_config(request_.config_file, overrides);
    refuse_unsupported(config, /*simulate=*/true);  // checkpoints play no part here either
    config.trainer.max_steps = request_.steps;
    if (!machine_.hardware.empty()) config.hardware = machine_.hardware;
    config.trainer.limit_val_batches = BatchCount{.count = 0, .fraction = {}};
    config.trainer.num_sanity_val_steps = 0;
    config.exp_manager.early_stopping.reset();
    return config;
  }

  void choose() {
    for (const Layout& layout : all_layouts(request_.ranks, num_layers_, axes_)) {
      if (!filter_.chooses(layout)) continue;
      LayoutResult result{layout, "fp64", {}, {}};
      try {
        const RunConfig config = load(layout, "fp64");
        if (bug_ != nullptr && !bug_->can_show(layout, config)) continue;
        ++num_legal_;
        num_without_recompute_ += layout.recompute == Recompute::kNone ? 1 : 0;
      } catch (const ConfigError& error) {
        result.why_illegal = error.what();
      }
      result_.layouts.push_back(std::move(result));
    }
    if (num_legal_ > 0) return;
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
  void derive_tolerances(const Layout& layout, const RunNumbers& expected) {
    Errors& tolerances = derived_[layout.zero1];
    if (!tolerances.empty()) return;
    const double rounding = unit_roundoff(load(Layout{}, "").precision);
    std::vector<Errors> runs;
    for (int run = 0; run < kRoundingRuns; ++run) {
      const RunChanges changes = rounded_otherwise(run, rounding);
      runs.push_back(errors_of(reference(layout, "", changes), expected, kVanishing));
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

  void run_configured(const RunNumbers& expected, Progress& progress) {
    std::vector<LayoutResult> results;
    for (const LayoutResult& one : result_.layouts) {
      if (!one.why_illegal.empty() || one.layout.recompute != Recompute::kNone) continue;
      results.push_back({one.layout, result_.precision, {}, {}});
      derive_tolerances(one.layout, expected);
    }
    std::vector<LayoutResult*> all;
    for (LayoutResult& result : results) all.push_back(&result);
    run_side_by_side(all, progress, [&](LayoutResult& result) {
      const Errors& tolerances = derived_.at(result.layout.zero1);
      const auto derived = [&](const std::string& what) {
        const auto found = tolerances.find(what);
        return found == tolerances.end() ? kLargestTolerance : found->second;
      };
      result.comparison = compare(numbers_of(result.layout, ""), expected, kVanishing, derived);
    });
    std::ranges::move(results, std::back_inserter(result_.layouts));
  }

  /// What layouts compute depends on no other layout: as many as the machine takes are under way.
  void run_side_by_side(const std::vector<LayoutResult*>& all, Progress& progress,
                        const std::function<void(LayoutResult&)>& run) {
    run_in_order(
        all.size(), machine_.layouts_at_once, [&](std::size_t i) { run(*all[i]); },
        [&](std::size_t i) { progress.notify(*all[i], ++progress.done, progress.of); });
  }

  const VerifyRequest& request_;
  LayoutFilter filter_;
  const SeededBug* bug_ = nullptr;
  ModelAxes axes_;
  int num_layers_ = 0, num_legal_ = 0, num_without_recompute_ = 0;
  runtime::WorldOptions one_rank_;
  VerifyMachine machine_;
  std::mutex data_mutex_;
  std::map<int, std::shared_ptr<const DataModule>> data_by_dp_;
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
