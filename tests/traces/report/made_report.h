#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "traces/report/report_file.h"

namespace trellis::analysis {

/// A small legal report of two ranks whose rows of `attribution` add up to the step, as the parts
/// of each rank do.
inline nlohmann::json made_report(const nlohmann::json& rows) {
  std::int64_t step_ps = 0;
  for (const auto& row : rows) step_ps += row.at("time_ps").get<std::int64_t>();
  const auto rank = [&](int index, std::int64_t bubble) {
    return nlohmann::json{{"rank", index},         {"matmul_ps", step_ps - bubble},
                          {"other_compute_ps", 0}, {"exposed_tp_ps", 0},
                          {"exposed_pp_ps", 0},    {"exposed_dp_ps", 0},
                          {"bubble_ps", bubble},   {"optimizer_ps", 0},
                          {"other_ps", 0},         {"memory_bound_ps", 0},
                          {"total_ps", step_ps}};
  };
  const auto memory = [](int index, std::int64_t bytes) {
    return nlohmann::json{{"rank", index},
                          {"at_peak",
                           {{"parameter_bytes", bytes / 2},
                            {"activation_bytes", bytes - bytes / 2},
                            {"gradient_bytes", 0},
                            {"optimizer_state_bytes", 0},
                            {"temporary_bytes", 0},
                            {"input_bytes", 0}}},
                          {"peak_bytes", bytes},
                          {"peak_reserved_bytes", bytes + 100},
                          {"capacity_bytes", 1 << 30},
                          {"peak_phase", "backward"}};
  };
  return {
      {"schema", "trellis.run_report/1"},
      {"verb", "simulate"},
      {"name", "made"},
      {"device", "neuron"},
      {"instance", "trn1.32xlarge"},
      {"nodes", 1},
      {"world_size", 2},
      {"tensor_model_parallel_size", 1},
      {"pipeline_model_parallel_size", 2},
      {"data_parallel_size", 1},
      {"num_microbatches", 4},
      {"parameters", 1000},
      {"tokens_per_step", 64},
      {"model_flops_per_step", 1e6},
      {"precision", "fp32"},
      {"steps", 1},
      {"max_steps", 1},
      {"interrupted", false},
      {"step_time_ms", static_cast<double>(step_ps) * 1e-9},
      {"tokens_per_s", 1.0},
      {"mfu", 0.25},
      {"mfu_denominator_flops", 1e12},
      {"portability",
       {{{"on_device", "in int32"}, {"operator", "eq"}, {"dtype", "int64"}, {"count", 3}}}},
      {"memory", {{"schema", "trellis.memory/1"}, {"ranks", {memory(0, 4000), memory(1, 6000)}}}},
      {"simulated",
       {{"schema", "trellis.step_report/1"},
        {"step_time_ps", step_ps},
        {"evidence", "estimated"},
        {"instance", "trn1.32xlarge"},
        {"peak_flops_per_core", 5e11},
        {"breakdown", {rank(0, step_ps / 4), rank(1, step_ps / 8)}},
        {"attribution", {{"rank", 0}, {"rows", rows}}},
        {"programs",
         {{{"name", "forward"}, {"hash", "aa"}, {"launches", 8}, {"device_time_us", 2.5}},
          {{"name", "backward"}, {"hash", "bb"}, {"launches", 8}, {"device_time_us", 5.0}}}},
        {"links", {{{"name", "node0.chip0.east"}, {"busy_us", 1.0}, {"size_bytes", 100}}}},
        {"coverage",
         {{"lowered_ops", 16},
          {"estimated_ops", 0},
          {"lowered_ops_share", 1.0},
          {"lowered_flops_share", 1.0},
          {"lowered_flops", 1100000},
          {"estimated_flops", 0},
          {"estimated", nlohmann::json::array()}}}}}};
}

inline nlohmann::json row(const std::string& phase, const std::string& component,
                          const std::string& op, const std::string& kind, std::int64_t ps,
                          std::int64_t count = 1) {
  return {{"phase", phase}, {"component", component}, {"operator", op},
          {"kind", kind},   {"time_ps", ps},          {"count", count}};
}

/// Distinct rows with random times.
inline nlohmann::json random_rows(std::mt19937& random) {
  std::uniform_int_distribution<std::int64_t> time(1, 1'000'000'000);
  nlohmann::json rows = nlohmann::json::array();
  for (const char* phase : {"forward", "backward", "optimizer"}) {
    for (const char* component :
         {"", "model.layers.*.mlp", "model.layers.*.self_attn", "lm_head"}) {
      for (const auto& [op, kind] : {std::pair{"mm", "compute"}, std::pair{"add", "memory"},
                                     std::pair{"all_reduce", "comm_tp"}}) {
        if (time(random) % 3 != 0)
          rows.push_back(row(phase, component, op, kind, time(random), time(random) % 100 + 1));
      }
    }
  }
  rows.push_back(row("", "", "", "other", time(random) / 1000));
  return rows;
}

inline ReportFile made_file(const nlohmann::json& report, Settings settings = {},
                            const std::string& name = "made/report.json") {
  return {name, report, std::move(settings)};
}

}  // namespace trellis::analysis
