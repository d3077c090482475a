#include "analysis/accuracy/replay_constants.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/error.h"

namespace trellis::analysis {
namespace {

constexpr double kWorthNaming = 0.1;  // of the mean error

/// Numbers of the core's instructions and transfers: what a document states for sure is left out.
bool may_be_off(const sim::Parameter& p) {
  const std::string& key = p.key;
  const bool timing = key.starts_with("core.tensor.") || key.starts_with("core.vector.") ||
                      key.starts_with("core.scalar.") || key.starts_with("core.gpsimd.") ||
                      key.starts_with("core.dma.") || key == "core.semaphore_latency" ||
                      key == "core.control_time" || key == "core.activation_table_load";
  return timing && p.from_traces;
}

/// "80 ns", scaled; "": no number.
std::string scaled(const std::string& value, double factor) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || number == 0) return "";
  return fmt::format("{:.4g}{}", number * factor, end);
}

}  // namespace

ReplayConstant explaining_constant(
    const sim::SystemConfig& system, double mean_error,
    const std::function<double(const std::vector<std::string>&)>& error_with) {
  ReplayConstant best;
  double least = mean_error;
  const auto attempt = [&](const sim::Parameter& p, double factor) {
    const std::string value = scaled(p.value, factor);
    if (value.empty()) return;
    double error = least;
    try {
      error = error_with({p.key + "=" + value});
    } catch (const ConfigError&) {
      return;  // not every number may have every value: bytes are whole
    }
    if (error >= least) return;
    least = error;
    best = {p.key, p.value, value, mean_error > 0 ? 1 - error / mean_error : 0};
  };
  const sim::Parameter* found = nullptr;
  for (const sim::Parameter& p : system.parameters) {
    if (!may_be_off(p)) continue;
    const std::string before = best.key;
    for (const double factor : {0.8, 1.25}) attempt(p, factor);
    if (best.key != before) found = &p;
  }
  if (found != nullptr) {
    for (const double factor : {0.5, 0.65, 0.9, 1.1, 1.5, 2.0}) attempt(*found, factor);
  }
  return best.explains >= kWorthNaming ? best : ReplayConstant{};
}

}  // namespace trellis::analysis
