#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trainer/data/data_module.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

class NxDPPModel;
struct ModuleContext;

/// The reference model's log-probabilities of preference pairs: what a policy is compared with in
/// direct preference optimization. They are computed once, in the order of the data, with the
/// weights that training starts from (with LoRA those without adapters, or with saved ones), and
/// kept in a file with a content hash of each pair. Every rank has all of them.
class ReferenceLogProbs {
 public:
  /// The model and data from which each rank computes the log-probabilities.
  struct Run {
    NxDPPModel& model;
    const ModuleContext& context;
    runtime::RankContext& rank;
    const DataModule& data;
    std::int64_t global_batch = 1;
    bool lora = false;      ///< without adapters the weights are still the reference's
    bool adapters = false;  ///< belong to the reference
  };

  /// Reads `file`, or makes and writes it. `steps_done`: of a run that goes on; its weights are no
  /// longer those of the reference model. Throws ConfigError, which names file and pair, when the
  /// file is of other data or of other weights, and when a run that goes on has none. `file` "":
  /// nothing is kept. All ranks call it together.
  ReferenceLogProbs(const Run& run, std::filesystem::path file, std::int64_t steps_done);

  /// Adds those of its pairs to each micro-batch of `split`.
  void add_to(std::vector<MicroBatch>& micro_batches, Split split) const;

 private:
  struct Pair {
    std::string hash;
    double chosen = 0, rejected = 0;
  };
  using Pairs = std::map<Split, std::vector<Pair>>;
  [[nodiscard]] static Pairs compute(const Run& run, std::int64_t most_batches);
  [[nodiscard]] static std::vector<std::string> hashes(const Run& run, Split split);
  void read();
  void write() const;
  void check_data(const Run& run) const;
  void check_weights(const Run& run) const;

  std::filesystem::path file_;
  Pairs pairs_;
};

}  // namespace trellis::trainer
