#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

void read_sinkhorn(SectionReader& moe, MoeSection& section) {
  section.router_activation =
      moe.one_of("router_activation", section.router_activation, {"sigmoid", "softmax"});
  section.sinkhorn_iterations = moe.at_most(
      "sinkhorn_iterations", moe.positive("sinkhorn_iterations", section.sinkhorn_iterations), 1000,
      "each is executed for every token");
  if (moe.raw("sinkhorn_tol") != "None")
    section.sinkhorn_tol = moe.optional<double>("sinkhorn_tol");  // Python's null
  if (section.routing_algorithm == "sinkhorn" && section.top_k != 1) {
    moe.problem("top_k", fmt::format("routing_algorithm sinkhorn sends each token to 1 expert, got "
                                     "{}; set it to 1 or use top_k",
                                     section.top_k));
  }
}

/// Groups of experts, of which a token chooses some before it chooses experts.
void read_groups(SectionReader& moe, MoeSection& section) {
  section.num_groups = moe.positive("num_groups", section.num_groups);
  section.top_k_groups = moe.positive("top_k_groups", section.num_groups);
  if (!moe.good({"num_experts", "num_groups", "top_k_groups", "top_k"})) return;
  if (section.routing_algorithm != "group_limited") {
    if (section.num_groups > 1)
      moe.problem("num_groups", fmt::format("{} needs routing_algorithm group_limited, got {}",
                                            section.num_groups, section.routing_algorithm));
    section.num_groups = section.top_k_groups = 1;
    return;
  }
  if (section.num_experts % section.num_groups != 0) {
    return moe.problem("num_groups", fmt::format("{} must divide num_experts {}",
                                                 section.num_groups, section.num_experts));
  }
  if (section.top_k_groups > section.num_groups) {
    return moe.problem("top_k_groups", fmt::format("must not exceed num_groups: {} > {}",
                                                   section.top_k_groups, section.num_groups));
  }
  const int reachable = section.num_experts / section.num_groups * section.top_k_groups;
  if (section.top_k > reachable) {
    moe.problem("top_k", fmt::format("{} exceeds the {} experts of top_k_groups {} groups of {}",
                                     section.top_k, reachable, section.top_k_groups,
                                     section.num_experts / section.num_groups));
  }
}

void read_routing(SectionReader& moe, MoeSection& section) {
  section.routing_algorithm = moe.one_of("routing_algorithm", section.routing_algorithm,
                                         {"top_k", "sinkhorn", "group_limited"});
  read_sinkhorn(moe, section);
  read_groups(moe, section);
  section.output_router_logits =
      moe.get<bool>("output_router_logits", section.output_router_logits);
  section.router_aux_loss_coef =
      moe.non_negative("router_aux_loss_coef", section.router_aux_loss_coef);
  section.normalize_top_k_affinities =
      moe.get<bool>("normalize_top_k_affinities", section.top_k > 1);
  if (section.normalize_top_k_affinities && section.top_k == 1 && moe.good({"top_k"})) {
    moe.problem("normalize_top_k_affinities",
                "true makes the one affinity of a token 1, without a gradient for the router: "
                "expected false with top_k 1");
  }
  section.routed_scaling_factor =
      moe.positive("routed_scaling_factor", section.routed_scaling_factor);
  section.num_shared_experts = static_cast<int>(
      moe.at_most("num_shared_experts",
                  static_cast<int>(moe.non_negative("num_shared_experts",
                                                    std::int64_t{section.num_shared_experts})),
                  1024, "they see every token"));
  section.block_size = moe.positive("block_size", section.block_size);
  if (moe.has_value("block_size") && !section.dropless)
    moe.problem("block_size",
                fmt::format("{} is of experts that drop no token: expected dropless true, got "
                            "false; set it, or remove this",
                            section.block_size));
  section.jitter_eps = moe.fraction("jitter_eps", section.jitter_eps);
}

/// NxDT's rules between dropping tokens and the capacity.
void check_capacity(SectionReader& moe, MoeSection& section) {
  if (section.dropless && !section.glu_mlp) {
    moe.problem("dropless", "needs gated experts: set glu_mlp to true");
  } else if (!section.glu_mlp) {
    moe.unsupported("glu_mlp", "experts without a gate (glu_mlp false)");
  }
  if (section.dropless && section.capacity_factor.value_or(0) > 0) {
    moe.problem("capacity_factor",
                fmt::format("{} contradicts dropless: true, which drops no token; set it to 0.0, "
                            "or dropless to false",
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
