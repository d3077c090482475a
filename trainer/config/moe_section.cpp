#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

void read_routing(SectionReader& moe, MoeSection& section) {
  section.routing_algorithm =
      moe.one_of("routing_algorithm", section.routing_algorithm, {"top_k", "sinkhorn"});
  section.router_activation =
      moe.one_of("router_activation", section.router_activation, {"sigmoid", "softmax"});
  section.sinkhorn_iterations = moe.at_most(
      "sinkhorn_iterations", moe.positive("sinkhorn_iterations", section.sinkhorn_iterations), 1000,
      "each is executed for every token");
  if (moe.raw("sinkhorn_tol") != "None")
    section.sinkhorn_tol = moe.optional<double>("sinkhorn_tol");  // Python's null
  section.output_router_logits =
      moe.get<bool>("output_router_logits", section.output_router_logits);
  section.router_aux_loss_coef =
      moe.non_negative("router_aux_loss_coef", section.router_aux_loss_coef);
  section.normalize_top_k_affinities =
      moe.get<bool>("normalize_top_k_affinities", section.top_k > 1);
  if (section.routing_algorithm == "sinkhorn" && section.top_k != 1) {
    moe.problem("top_k", fmt::format("routing_algorithm sinkhorn sends each token to 1 expert, got "
                                     "{}; set it to 1 or use top_k",
                                     section.top_k));
  }
}

/// NxDT's rules between dropping tokens and the capacity.
void check_capacity(SectionReader& moe, MoeSection& section) {
  if (section.dropless && !section.glu_mlp) {
    moe.problem("dropless", "needs gated experts: set glu_mlp to true");
  }
  if (section.dropless && section.capacity_factor.value_or(0) > 0) {
    moe.warn("capacity_factor",
             fmt::format("{} has no effect: a dropless layer drops no token; 0.0 is used",
                         *section.capacity_factor));
  }
  if (section.dropless) section.capacity_factor = 0;
  if (!section.dropless && section.capacity_factor && *section.capacity_factor <= 0) {
    moe.problem("capacity_factor", fmt::format("must be greater than 0 unless dropless is true, "
                                               "got {}; null lets every expert see all tokens",
                                               *section.capacity_factor));
  }
}

}  // namespace

std::optional<MoeSection> read_moe(SectionReader& model, bool megatron) {
  SectionReader moe = model.section("moe");
  if (moe.empty()) return std::nullopt;
  MoeSection section;
  section.num_experts = moe.at_most("num_experts", moe.required_positive("num_experts"), 1 << 16,
                                    "each has its own weights");
  section.top_k = moe.positive("top_k", section.top_k);
  if (moe.good({"num_experts", "top_k"}) && section.top_k > section.num_experts) {
    moe.problem("top_k", fmt::format("must not exceed num_experts: {} > {}", section.top_k,
                                     section.num_experts));
  }
  section.frequency = moe.positive("frequency", section.frequency);
  if (megatron) section.first_layer = section.frequency - 1;
  section.dropless = moe.get<bool>("dropless", section.dropless);
  section.glu_mlp = moe.get<bool>("glu_mlp", section.glu_mlp);
  section.capacity_factor = moe.optional<double>("capacity_factor");
  if (megatron && !section.dropless && moe.good({"num_experts"}) && !moe.has("capacity_factor"))
    section.capacity_factor = static_cast<double>(section.num_experts) / section.top_k;
  check_capacity(moe, section);
  read_routing(moe, section);
  return section;
}

}  // namespace trellis::trainer
