#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::analysis {

/// Least work and least memory of one virtual pipeline stage on one tensor-parallel rank, for one
/// micro-batch. Work: what every program that computes this model must do, whatever the compiler
/// makes of it; left out is what is not certain: norms, rotation, loss, exchanges of tokens,
/// weights of experts, padding to blocks, what adapters (LoRA) add. Activations: what this
/// trainer's modules keep for the backward; left out are masks of dropout, statistics of norms and
/// attention, what exchanges of tokens keep, and inputs of adapters.
struct StageWork {
  double forward_flops = 0;
  double backward_flops = 0;  ///< with what full recomputation repeats
  double backward_chain_flops =
      0;  ///< of it what gradients of inputs need, one layer after the other
  std::int64_t weight_bytes = 0;  ///< of the multiplied matrices, in the type that they are kept in
  std::int64_t parameters = 0;    ///< held, norms and embeddings too
  std::int64_t trained_parameters = 0;  ///< 0 with LoRA, whose adapters are not counted
  std::int64_t expert_parameters = 0;   ///< of the trained ones: other ranks hold other experts
  int sums_forward = 0;  ///< of the hidden state over TP, each between two matrix products that
                         ///< depend on each other
  int sums_backward = 0;
  // Activations of one micro-batch.
  std::int64_t saved_bytes = 0;     ///< that the backward needs
  std::int64_t forward_bytes = 0;   ///< next to them, at the end of the forward
  std::int64_t backward_bytes = 0;  ///< next to them, while the backward is in the last layer
};

/// One for each of PP · VPP stages, in the order of the layers. REQUIRES: a configuration without
/// problems.
[[nodiscard]] std::vector<StageWork> stage_work(const trainer::RunConfig& config);

/// Bytes of the hidden state of one micro-batch, whole.
[[nodiscard]] std::int64_t hidden_bytes(const trainer::RunConfig& config);
/// Bytes of an element of weights, gradients and activations.
[[nodiscard]] int weight_element_bytes(const trainer::RunConfig& config);
[[nodiscard]] int gradient_element_bytes(const trainer::RunConfig& config);
[[nodiscard]] int activation_element_bytes(const trainer::RunConfig& config);

}  // namespace trellis::analysis
