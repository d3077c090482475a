#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/modules/moe/router_record.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Which experts the tokens of a micro-batch go to, and how much each counts.
struct Choice {
  at::Tensor experts;     ///< [tokens, k] int64, distinct in a row
  at::Tensor affinities;  ///< [tokens, k], of the wide type; differentiable
  at::Tensor logits;      ///< [tokens, experts], of the wide type
};

/// Scores every expert for every token and chooses k of them (nxdt-features §3.10). In the wide
/// type (fp32, fp64 in fp64 runs).
///
///   top_k          affinities softmax(x · Wᵀ), the k largest
///   sinkhorn       k = 1: training takes the largest after `sinkhorn_iterations` normalisations of
///                  exp(logits), evaluation the largest logit; affinity sigmoid or softmax of it
///   group_limited  affinities sigmoid(logits); of `num_groups` groups of experts those
///                  `top_k_groups` with the largest sums of their two best, then the k largest of
///                  them (DeepSeek-V3 without its correction bias)
///
/// The affinities are not normalised here: that is for whoever knows which picks were dropped.
class Router {
 public:
  Router(const ModuleContext& context, const std::string& path, const ModelSection& config);
  /// `tokens` [tokens, h], the same on every TP rank. With an auxiliary loss backward adds its
  /// gradient from `record`. Throws ConfigError when sinkhorn_tol is not reached.
  [[nodiscard]] Choice forward(const at::Tensor& tokens, int layer,
                               const std::shared_ptr<RouterRecord>& record) const;

 private:
  [[nodiscard]] at::Tensor with_jitter(const at::Tensor& tokens) const;
  [[nodiscard]] Choice choose(const at::Tensor& logits) const;
  [[nodiscard]] at::Tensor balanced(const at::Tensor& logits) const;
  [[nodiscard]] at::Tensor without_lesser_groups(const at::Tensor& scores) const;

  std::string path_;
  MoeSection moe_;
  AuxiliaryLoss auxiliary_;
  at::Tensor weight_;  ///< [experts, h]
  at::ScalarType wide_;
  at::Device device_;
  bool shape_only_;
  int tp_size_;
  std::int64_t seed_;
  std::shared_ptr<StepPosition> position_;
};

}  // namespace trellis::trainer
