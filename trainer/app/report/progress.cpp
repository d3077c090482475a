#include "trainer/app/report/progress.h"

#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "base/number_text.h"
#include "traces/metrics_writer.h"
#include "traces/report/text_table.h"
#include "traces/tensorboard_writer.h"
#include "trainer/app/report/throughput.h"

namespace trellis::trainer {

struct Progress::Impl {
  analysis::RunFacts facts;
  ProgressOptions options;
  traces::MetricsWriter metrics;
  std::unique_ptr<traces::TensorBoardWriter> tensorboard;
  bool denominator_said = false;
  Throughput throughput;
  std::vector<analysis::HostFacts::Step> host_steps;

  Impl(const analysis::RunFacts& f, const std::filesystem::path& directory,
       const ProgressOptions& o)
      : facts(f), options(o), metrics(directory / "metrics.jsonl") {}
  [[nodiscard]] std::map<std::string, double> scalars_of(const StepLog& log) const {
    std::map<std::string, double> scalars = log.scalars;
    scalars["global_step"] = static_cast<double>(log.step);
    scalars["throughput"] = throughput.sequences_per_s();
    scalars["throughput_peak"] = throughput.peak();
    if (log.simulated) {
      scalars["step_time_ms"] = log.simulated->step_time_ms;
      scalars["tokens_per_s"] = log.simulated->tokens_per_s;
      scalars["mfu"] = log.simulated->mfu;
    }
    if (!options.log_step_timing) return scalars;
    scalars["train_step_timing"] = log.host_s - log.validation_s;
    scalars["train_backward_timing"] = log.backward_s;
    if (log.validation_batches == 0) return scalars;
    const auto batches = static_cast<double>(log.validation_batches);
    scalars["validation_step_timing"] = log.validation_s / batches;
    return scalars;
  }
  void say(const std::string& line) const {
    if (options.enable_progress_bar) {
      std::fputs((line + "\n").c_str(), stderr);
      note_written();
    }
    if (options.log_line) options.log_line(line);
  }
};

namespace {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string hours(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string line(const StepLog& log, const Throughput& throughput, std::int64_t max_steps) {
  const bool ends_by_steps = max_steps > 0;
  std::string text = fmt::format("step {:>4}", log.step);
  if (ends_by_steps) text += fmt::format("/{}", max_steps);
  if (log.has_loss)
    text +=
        fmt::format("  loss {:.4f}  lr {:.3e}  grad norm {:.4f}", log.loss, log.lr, log.grad_norm);
  if (const auto margin = log.metrics.find("rewards/margins");
      log.has_loss && margin != log.metrics.end())
    text += fmt::format("  margin {:.4f}  accuracy {:.2f}", margin->second,
                        log.metrics.at("rewards/accuracies"));
  if (log.has_loss && log.val_loss) text += fmt::format("  val loss {:.4f}", *log.val_loss);
  text += fmt::format("  host {:.2f} s/step, {:.3g} sequences/s", log.host_s,
                      throughput.sequences_per_s());
  const auto steps_left = static_cast<double>(max_steps - log.step);
  if (ends_by_steps)
    text += fmt::format(", {} left", hours(throughput.seconds_per_step() * steps_left));
  if (log.simulated) {
    text += fmt::format("  simulated {} ms/step  {} tokens/s  MFU {}",
                        analysis::significant(log.simulated->step_time_ms),
                        rate_text(log.simulated->tokens_per_s),
                        analysis::share_text(log.simulated->mfu, 1));
  }
  return text;
}

}  // namespace

Progress::Progress(const analysis::RunFacts& facts, const std::filesystem::path& directory,
                   const ProgressOptions& options)
    : impl_(std::make_unique<Impl>(facts, directory, options)) {
  if (options.tensorboard)
    impl_->tensorboard = std::make_unique<traces::TensorBoardWriter>(
        directory / "events.out.tfevents.0.trellis", wall_clock_s());
}

Progress::~Progress() = default;

std::map<std::string, double> Progress::step(const StepLog& log,
                                             const nlohmann::json& step_report) {
  Impl& p = *impl_;
  if (!p.denominator_said && log.simulated) {
    const double core = step_report.at("peak_flops_per_core").get<double>() * 1e-12;
    p.say(fmt::format("MFU denominator: {:.1f} TFLOPS = {} cores × {:.1f} TFLOPS bf16 ({})",
                      core * p.facts.world_size, p.facts.world_size, core, p.facts.instance));
    p.denominator_said = true;
  }
  p.throughput.add(static_cast<double>(log.sequences), log.host_s);
  const bool due = log.step == 1 || log.step % p.options.log_every_n_steps == 0 ||
                   log.step == p.facts.max_steps || log.val_loss;
  if (due) p.say(line(log, p.throughput, p.facts.max_steps));

  nlohmann::json row = {{"step", log.step}};
  p.host_steps.push_back(
      {log.step, log.host_s, p.throughput.sequences_per_s(), p.throughput.peak(), log.data_wait_s});
  if (log.has_loss) {
    row["loss"] = log.loss;
    row["lr"] = log.lr;
    row["grad_norm"] = log.grad_norm;
    row["consumed_samples"] = log.consumed_samples;
    if (log.skipped) row["skipped"] = true;
    for (const auto& [tag, value] : log.scalars) {
      const bool of_routers = tag.ends_with("ed_tokens") || tag == "expert_imbalance";
      if (of_routers || tag.ends_with("_norm_total")) row[tag] = value;
    }
    for (const auto& [tag, value] : log.metrics) row[tag] = value;
    if (log.parameter_norm) row["parameter_norm"] = *log.parameter_norm;
    if (log.val_loss) row["val_loss"] = *log.val_loss;
  }
  if (log.simulated) {
    row["step_time_ms"] = log.simulated->step_time_ms;
    row["tokens_per_s"] = log.simulated->tokens_per_s;
    row["mfu"] = log.simulated->mfu;
  }
  p.metrics.write(row);
  std::map<std::string, double> scalars = p.scalars_of(log);
  if (!due || !p.tensorboard) return scalars;
  for (const auto& [tag, value] : scalars) {
    if (tag == "gradient_norm" && !p.options.log_gradient_norm) continue;
    p.tensorboard->scalar(tag, log.step, value, wall_clock_s());
  }
  return scalars;
}

const std::vector<analysis::HostFacts::Step>& Progress::host_steps() const {
  return impl_->host_steps;
}

void Progress::test(const TestLog& log) {
  Impl& p = *impl_;
  const double batch_s = log.host_s / static_cast<double>(log.batches);
  p.say(fmt::format("test after step {}: loss {:.4f} over {} batches, host {:.2f} s each", log.step,
                    log.loss, log.batches, batch_s));
  p.metrics.write({{"step", log.step}, {"test_loss", log.loss}});
  if (!p.tensorboard) return;
  p.tensorboard->scalar("test_loss", log.step, log.loss, wall_clock_s());
  if (p.options.log_step_timing)
    p.tensorboard->scalar("test_step_timing", log.step, batch_s, wall_clock_s());
}

}  // namespace trellis::trainer
