#include "trainer/app/progress.h"

#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "traces/metrics_writer.h"
#include "traces/tensorboard_writer.h"

namespace trellis::trainer {

struct Progress::Impl {
  RunFacts facts;
  int every = 1;
  traces::MetricsWriter metrics;
  std::unique_ptr<traces::TensorBoardWriter> tensorboard;
  bool denominator_said = false;

  Impl(const RunFacts& f, const std::filesystem::path& directory, int n) : facts(f), every(n), metrics(directory / "metrics.jsonl") {}
};

namespace {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string line(const StepLog& log, std::int64_t max_steps) {
  std::string text = fmt::format("step {:>4}/{}", log.step, max_steps);
  if (log.has_loss) text += fmt::format("  loss {:.4f}  lr {:.3e}  grad norm {:.4f}", log.loss, log.lr, log.grad_norm);
  text += fmt::format("  host {:.2f} s/step", log.host_s);
  if (log.simulated) {
    text += fmt::format("  simulated {:.4f} ms/step  {} tokens/s  MFU {:.2f} %", log.simulated->step_time_ms,
                        thousands(static_cast<std::int64_t>(log.simulated->tokens_per_s)), 100 * log.simulated->mfu);
  }
  return text;
}

}  // namespace

Progress::Progress(const RunFacts& facts, const std::filesystem::path& directory, bool tensorboard, int log_every_n_steps)
    : impl_(std::make_unique<Impl>(facts, directory, log_every_n_steps)) {
  if (tensorboard) impl_->tensorboard = std::make_unique<traces::TensorBoardWriter>(directory / "events.out.tfevents.0.trellis", wall_clock_s());
}

Progress::~Progress() = default;

void Progress::step(const StepLog& log, const nlohmann::json& step_report) {
  Impl& p = *impl_;
  if (!p.denominator_said && log.simulated) {
    const double core = step_report.at("peak_flops_per_core").get<double>() * 1e-12;
    std::fputs(fmt::format("MFU denominator: {:.1f} TFLOPS = {} cores × {:.1f} TFLOPS bf16 ({})\n", core * p.facts.world_size, p.facts.world_size, core,
                           p.facts.instance).c_str(), stderr);
    p.denominator_said = true;
  }
  if (log.step == 1 || log.step % p.every == 0 || log.step == p.facts.max_steps) std::fputs((line(log, p.facts.max_steps) + "\n").c_str(), stderr);

  nlohmann::json row = {{"step", log.step}, {"host", {{"s_per_step", log.host_s}}}};
  if (log.has_loss) {
    row["loss"] = log.loss;
    row["lr"] = log.lr;
    row["grad_norm"] = log.grad_norm;
  }
  if (log.simulated) {
    row["step_time_ms"] = log.simulated->step_time_ms;
    row["tokens_per_s"] = log.simulated->tokens_per_s;
    row["mfu"] = log.simulated->mfu;
  }
  p.metrics.write(row);
  if (!p.tensorboard) return;
  for (const auto& [key, value] : row.items()) {
    if (key != "step" && key != "host") p.tensorboard->scalar(key, log.step, value.get<double>(), wall_clock_s());
  }
}

}  // namespace trellis::trainer
