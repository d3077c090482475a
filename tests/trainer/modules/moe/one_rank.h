#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "trainer/config/model_section.h"
#include "trainer/modules/moe/router_record.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer::testing_support {

/// A mixture's layer on one rank in fp64.
struct OneRank {
  OneRank() {
    model.hidden_size = 12;
    model.ffn_hidden_size = 20;
    model.num_layers = 1;
    model.init_method_std = 0.5;
    model.activation = Activation::kSwiglu;
    model.moe = MoeSection{.num_experts = 6, .top_k = 2, .dropless = true};
    context.parallel = &parallel;
    context.parameters = &parameters;
    context.backward = std::make_shared<BackwardLayer>();
    context.dtype = context.reduce_dtype = at::kDouble;
    context.seed = 3;
  }
  OneRank(const OneRank&) = delete;

  [[nodiscard]] const at::Tensor& weight(const std::string& end) const {
    for (const Parameter& parameter : parameters) {
      if (parameter.name.ends_with(end)) return parameter.tensor;
    }
    TORCH_CHECK(false, "no weight ", end);
  }

  ModelSection model;
  ParallelState parallel;
  ParameterList parameters;
  ModuleContext context;
};

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

}  // namespace trellis::trainer::testing_support
