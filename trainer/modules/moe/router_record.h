#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Decisions of the routers of one micro-batch on one rank, for all layers that it has passed so
/// far. A layer that is recomputed writes the same numbers again.
///
/// The auxiliary loss of a micro-batch is a function of the means over all layers of the model (NxD
/// and Hugging Face concatenate the routers' logits), so that a stage hands the sums of its layers
/// and of those before it to the next one, and gets the gradient back.
struct RouterRecord {
  struct Layer {
    at::Tensor assigned;  ///< [experts] int64: picks of the router
    at::Tensor kept;      ///< [experts] int64: those within the capacity
    /// By expert: rows that it computes on this rank, empty ones too; 0 elsewhere.
    std::vector<std::int64_t> computed;
    at::Tensor probabilities;  ///< [experts]: mean over tokens of the softmax of the logits
  };
  std::map<int, Layer> layers;  ///< of this stage, by index in the whole model
  at::Tensor sums_before;  ///< [2, experts]: Σ assigned, Σ probabilities of earlier stages' layers
  at::Tensor gradient;     ///< [experts] of the loss, by each layer's `probabilities`; set before
                           ///< backward reaches the layers
};

/// The auxiliary loss as data: (experts / top_k) · Σ_e f_e · p_e with f_e the share of tokens whose
/// picks include expert e and p_e its mean probability, both means over layers and tokens. 1 when
/// routing is uniform. (Transformers' Mixtral leaves out the division by top_k.)
struct AuxiliaryLoss {
  double coefficient = 0;
  std::int64_t experts = 0, top_k = 1, layers = 0;
  [[nodiscard]] bool is_on() const { return coefficient > 0; }
};
/// `model.moe` of a model: off unless output_router_logits.
[[nodiscard]] AuxiliaryLoss auxiliary_loss_of(const ModelSection& model);

/// [2, experts]: of this stage's layers and those before it.
[[nodiscard]] at::Tensor router_sums(const RouterRecord& record);

/// `logits` [tokens, experts] unchanged; backward adds the gradient of the auxiliary loss, divided
/// by `ranks` that compute the same router and whose gradients are summed.
[[nodiscard]] at::Tensor with_auxiliary_gradient(const at::Tensor& logits,
                                                 const at::Tensor& probabilities,
                                                 std::shared_ptr<RouterRecord> record, int ranks);

/// [Σ weight · loss, Σ weight] of a micro-batch, with its auxiliary loss, which weighs as much as
/// its labels do. `tokens`, and the sums: of this rank's part of the sequences; the loss is that of
/// the sequences, of which `context` has the other parts.
[[nodiscard]] at::Tensor with_auxiliary_loss(const at::Tensor& sums, const AuxiliaryLoss& loss,
                                             std::int64_t tokens,
                                             std::shared_ptr<RouterRecord> record,
                                             const ParallelGroup& context = {});

/// Elements that the sums of the routers take after the activations at a stage border of `dtype`.
[[nodiscard]] std::int64_t packed_elements(const AuxiliaryLoss& loss, at::ScalarType dtype);
/// Flat: the activations, then the sums of the routers, bit by bit where `hidden` is narrower.
[[nodiscard]] at::Tensor pack_border(const at::Tensor& hidden,
                                     std::shared_ptr<RouterRecord> record);
/// The inverse: activations of `sizes`; the sums go to `record`.
[[nodiscard]] at::Tensor unpack_border(const at::Tensor& packed,
                                       const std::vector<std::int64_t>& sizes, std::int64_t experts,
                                       std::shared_ptr<RouterRecord> record);

}  // namespace trellis::trainer
