#include <fmt/format.h>

#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/sections.h"

namespace trellis::trainer {
namespace {

void check_picks(SectionReader& reader, const MoeSection& s) {
  if (reader.good({"num_experts", "top_k"}) && s.top_k > s.num_experts) {
    reader.problem("top_k",
                   fmt::format("must not exceed num_experts: {} > {}", s.top_k, s.num_experts));
  }
}

/// NxDT's rules between dropping tokens and the capacity.
void check_capacity(SectionReader& reader, MoeSection& s, bool megatron) {
  if (megatron && !s.dropless && reader.good({"num_experts"}) && !reader.has("capacity_factor"))
    s.capacity_factor = static_cast<double>(s.num_experts) / s.top_k;
  if (s.dropless && !s.glu_mlp) {
    reader.problem("dropless", "needs gated experts: set glu_mlp to true");
  } else if (!s.glu_mlp) {
    reader.unsupported("glu_mlp", "experts without a gate (glu_mlp false)");
  }
  if (s.dropless && s.capacity_factor.value_or(0) > 0) {
    reader.problem("capacity_factor",
                   fmt::format("{} contradicts dropless: true, which drops no token; set it to "
                               "0.0, or dropless to false",
                               *s.capacity_factor));
  }
  if (s.dropless) s.capacity_factor = 0;
  if (!s.dropless && s.capacity_factor && *s.capacity_factor <= 0) {
    reader.problem("capacity_factor",
                   fmt::format("must be greater than 0 unless dropless is true, got {}; null lets "
                               "every expert see all tokens",
                               *s.capacity_factor));
  }
}

void check_sinkhorn(SectionReader& reader, MoeSection& s) {
  s.sinkhorn_iterations = reader.at_most("sinkhorn_iterations", s.sinkhorn_iterations, 1000,
                                         "each is executed for every token");
  if (s.routing_algorithm != "sinkhorn" || s.top_k == 1) return;
  reader.problem("top_k", fmt::format("routing_algorithm sinkhorn sends each token to 1 expert, "
                                      "got {}; set it to 1 or use top_k",
                                      s.top_k));
}

constexpr const char* kNotNormalized =
    "1: affinities are not normalised, as the one of a token would be 1 without a gradient for the "
    "router (NxD refuses that with ValueError); normalize_top_k_affinities: false says so";

void read_affinities(SectionReader& reader, MoeSection& s) {
  s.normalize_top_k_affinities = reader.get<bool>("normalize_top_k_affinities", s.top_k > 1);
  if (s.normalize_top_k_affinities && s.top_k == 1 && reader.good({"top_k"})) {
    reader.problem("normalize_top_k_affinities",
                   "true makes the one affinity of a token 1, without a gradient for the router: "
                   "expected false with top_k 1");
  }
  if (s.top_k == 1 && !reader.has("normalize_top_k_affinities"))
    reader.warn("top_k", kNotNormalized);
}

/// Checks the groups of experts. A token chooses some groups before it chooses experts.
void check_groups(SectionReader& reader, MoeSection& s) {
  if (!reader.good({"num_experts", "num_groups", "top_k_groups", "top_k"})) return;
  if (s.routing_algorithm != "group_limited") {
    if (s.num_groups > 1)
      reader.problem("num_groups", fmt::format("{} needs routing_algorithm group_limited, got {}",
                                               s.num_groups, s.routing_algorithm));
    s.num_groups = s.top_k_groups = 1;
    return;
  }
  if (s.num_experts % s.num_groups != 0) {
    return reader.problem(
        "num_groups", fmt::format("{} must divide num_experts {}", s.num_groups, s.num_experts));
  }
  if (s.top_k_groups > s.num_groups) {
    return reader.problem("top_k_groups", fmt::format("must not exceed num_groups: {} > {}",
                                                      s.top_k_groups, s.num_groups));
  }
  const int reachable = s.num_experts / s.num_groups * s.top_k_groups;
  if (s.top_k > reachable) {
    reader.problem("top_k",
                   fmt::format("{} exceeds the {} experts of top_k_groups {} groups of {}", s.top_k,
                               reachable, s.top_k_groups, s.num_experts / s.num_groups));
  }
}

void group_fields(Fields& fields, MoeSection& s) {
  const bool grouped = s.routing_algorithm == "group_limited";
  const auto field = [&](const char* key, int& value, int otherwise) {
    fields.own().form(
        key, [&](SectionReader& r) { value = r.positive(key, otherwise); },
        [&](YamlWriter& out) {
          if (grouped) out.integer(key, value);
        });
  };
  field("num_groups", s.num_groups, 1);
  field("top_k_groups", s.top_k_groups, s.num_groups);
  fields.rule([&](SectionReader& r) { check_groups(r, s); });
}

void read_block_size(SectionReader& reader, MoeSection& s) {
  s.block_size = reader.positive("block_size", s.block_size);
  if (!reader.has_value("block_size") || s.dropless) return;
  reader.problem("block_size",
                 fmt::format("{} is of experts that drop no token: expected dropless true, got "
                             "false; set it, or remove this",
                             s.block_size));
}

/// Keys that NxDT does not have.
void own_moe_fields(Fields& fields, MoeSection& s) {
  group_fields(fields, s);
  fields.own().positive("routed_scaling_factor", s.routed_scaling_factor);
  fields.own().non_negative("num_shared_experts", s.num_shared_experts);
  fields.rule([&](SectionReader& r) {
    s.num_shared_experts =
        r.at_most("num_shared_experts", s.num_shared_experts, 1024, "they see every token");
  });
  fields.own().fraction("jitter_eps", s.jitter_eps);
  fields.own().form(
      "block_size", [&](SectionReader& r) { read_block_size(r, s); },
      [&](YamlWriter& out) {
        if (s.dropless) out.integer("block_size", s.block_size);
      });
}

void moe_fields(Fields& fields, MoeSection& s, bool megatron) {
  fields.required_positive("num_experts", s.num_experts);
  fields.rule([&](SectionReader& r) {
    s.num_experts = r.at_most("num_experts", s.num_experts, 1 << 16, "each has its own weights");
  });
  fields.positive("top_k", s.top_k);
  fields.rule([&](SectionReader& r) { check_picks(r, s); });
  fields.positive("frequency", s.frequency);
  if (megatron) s.first_layer = s.frequency - 1;
  fields.number("capacity_factor", s.capacity_factor);
  fields.boolean("dropless", s.dropless);
  fields.one_of("routing_algorithm", s.routing_algorithm, {"top_k", "sinkhorn", "group_limited"});
  fields.one_of("router_activation", s.router_activation, {"sigmoid", "softmax"});
  fields.positive("sinkhorn_iterations", s.sinkhorn_iterations);
  fields.form(
      "sinkhorn_tol",
      [&](SectionReader& r) {
        if (r.raw("sinkhorn_tol") != "None")  // Python's null
          s.sinkhorn_tol = r.optional<double>("sinkhorn_tol");
      },
      [&](YamlWriter& out) { out.number_or_null("sinkhorn_tol", s.sinkhorn_tol); });
  fields.rule([&](SectionReader& r) { check_sinkhorn(r, s); });
  fields.boolean("output_router_logits", s.output_router_logits);
  fields.non_negative("router_aux_loss_coef", s.router_aux_loss_coef);
  fields.form(
      "normalize_top_k_affinities", [&](SectionReader& r) { read_affinities(r, s); },
      [&](YamlWriter& out) {
        out.boolean("normalize_top_k_affinities", s.normalize_top_k_affinities);
      });
  fields.boolean("glu_mlp", s.glu_mlp);
  fields.rule([&](SectionReader& r) { check_capacity(r, s, megatron); });
  own_moe_fields(fields, s);
}

}  // namespace

std::optional<MoeSection> read_moe(SectionReader& model, bool megatron) {
  SectionReader reader = model.section("moe");
  if (reader.empty()) return std::nullopt;
  MoeSection section;
  Fields fields = Fields::reading(reader);
  moe_fields(fields, section, megatron);
  return section;
}

void write_moe(YamlWriter& out, MoeSection section) {
  out.open("moe");
  Fields fields = Fields::writing(out);
  moe_fields(fields, section, /*megatron=*/false);
  out.close();
}

void list_moe_keys(Fields& fields) {
  MoeSection section;
  moe_fields(fields, section, /*megatron=*/false);
}

}  // namespace trellis::trainer
