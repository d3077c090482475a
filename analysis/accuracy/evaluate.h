#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analysis/accuracy/published_rows.h"
#include "sim/sim.h"

namespace trellis::analysis {

/// Times published rows with the model. Keeps the simulator of the last machine, since rows of one
/// machine are together.
class Evaluator {
 public:
  /// `overrides`, `calibrated`: as in sim::LoadOptions, for every row.
  Evaluator(std::vector<std::string> overrides, bool calibrated)
      : overrides_(std::move(overrides)), calibrated_(calibrated) {}

  /// Microseconds of a row of `subject` ("kernels", "dma", "collectives", "intervals"). Mistakes in
  /// the row's keys collect in its document.
  [[nodiscard]] double time_us(const std::string& subject, const PublishedRow& row);

 private:
  double kernel_us(const PublishedRow& row);
  double dma_us(const PublishedRow& row);
  double interval_us(const PublishedRow& row);
  double collective_us(const PublishedRow& row);
  /// Loads the machine unless it is the current one. `logical_core_size` 0: the instance's default.
  /// `single_instructions`: with the numbers of the section `instruction_traces`.
  void use_machine(const std::string& instance, int nodes, int logical_core_size,
                   bool single_instructions = false);

  std::vector<std::string> overrides_;
  bool calibrated_;
  std::string machine_;
  sim::SystemConfig system_;
  std::unique_ptr<sim::Simulator> simulator_;
};

}  // namespace trellis::analysis
