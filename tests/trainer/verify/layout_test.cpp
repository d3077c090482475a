// The list of layouts is all of them: what validation allows and the list does not have does not
// exist.
#include <gmock/gmock.h>

#include <set>

#include "trainer/config/load/load_run_config.h"
#include "trainer/verify/layout.h"

namespace trellis::trainer {
namespace {

struct Case {
  int ranks, num_layers;
  std::vector<std::string> sizes;
  int num_experts = 0;
  bool ring_attention = false;
  [[nodiscard]] ModelAxes axes() const {
    return {.experts = num_experts, .ring_attention = ring_attention};
  }
};

bool is_legal(const Case& size, const Layout& layout) {
  std::vector<std::string> overrides = size.sizes;
  overrides.push_back("model.num_layers=" + std::to_string(size.num_layers));
  if (size.ring_attention) {
    overrides.push_back("model.fusions.ring_attention=true");
    overrides.push_back("model.fusions.flash_attention=false");
  }
  overrides.push_back("model.vocab_size=264");  // what every TP here divides
  for (const std::string& one : overrides_of(layout)) overrides.push_back(one);
  const std::string file = size.num_experts > 0 ? "verify_mixtral.yaml" : "verify_llama.yaml";
  const RunCheck check =
      check_run_config(std::string(TRELLIS_SOURCE_DIR) + "/examples/" + file, overrides);
  return check.problems.empty() && check.config.unsupported.empty();
}

void try_experts_and_contexts(const Case& size, Layout layout, std::set<std::string>& legal) {
  const int ranks = layout.dp;
  for (int ep = 1; ep <= (size.num_experts > 0 ? size.ranks + 1 : 1); ++ep) {
    for (int cp = 1; cp <= (size.ring_attention ? ranks : 1); ++cp) {
      if (ranks % cp != 0) continue;
      for (const bool balanced : {false, true}) {
        if (balanced && cp == 1) continue;  // accepted, and the layout without it
        layout.ep = ep;
        layout.cp = cp;
        layout.dp = ranks / cp;
        layout.balanced_context = balanced;
        for (int shards = 0; shards <= ranks; ++shards) {  // 0: not fully sharded
          if (shards == 1 || (shards > 0 && ranks % shards != 0))
            continue;  // or the layout without
          layout.fsdp = shards > 0;
          layout.fsdp_replicas = layout.fsdp ? ranks / shards : 1;
          if (is_legal(size, layout)) legal.insert(to_string(layout));
        }
      }
    }
  }
}

/// Every value of every key, as far as one could be legal and beyond.
std::set<std::string> legal_by_trying(const Case& size) {
  std::set<std::string> legal;
  for (int tp = 1; tp <= size.ranks; ++tp) {
    for (int pp = 1; pp <= size.ranks; ++pp) {
      if (size.ranks % (tp * pp) != 0) continue;
      for (int vpp = 1; vpp <= size.num_layers + 1; ++vpp) {
        for (int copies = 1; copies <= size.ranks; ++copies) {
          for (const bool sequence_parallel : {false, true}) {
            if (sequence_parallel && tp == 1) continue;  // accepted, and the layout without it
            const Layout layout{.tp = tp,
                                .pp = pp,
                                .vpp = vpp,
                                .dp = size.ranks / tp / pp,
                                .sequence_parallel = sequence_parallel,
                                .kv_replicator = copies};
            try_experts_and_contexts(size, layout, legal);
          }
        }
      }
    }
  }
  return legal;
}

class AllLayouts : public testing::TestWithParam<Case> {};

TEST_P(AllLayouts, HasEveryLayoutThatValidationAllows) {
  const Case& size = GetParam();
  std::set<std::string> listed;
  for (const Layout& layout : all_layouts(size.ranks, size.num_layers, size.axes())) {
    if (layout.zero1 && layout.recompute == Recompute::kNone && is_legal(size, layout))
      listed.insert(to_string(layout));
  }
  EXPECT_EQ(listed, legal_by_trying(size));
  EXPECT_GT(listed.size(), 10U);
}

/// No rule joins them to the other factors, except that they must be legal alone.
TEST_P(AllLayouts, HasEachWithAndWithoutZero1AndInEachRecomputeMode) {
  const Case& size = GetParam();
  std::set<std::string> names, bases, sharded;
  const std::vector<Layout> all = all_layouts(size.ranks, size.num_layers, size.axes());
  for (Layout layout : all) {
    EXPECT_TRUE(names.insert(to_string(layout)).second) << to_string(layout) << " twice";
    EXPECT_EQ(layout.world_size(), size.ranks);
    layout.recompute = Recompute::kNone;
    if (layout.fsdp) sharded.insert(to_string(layout));
    layout.zero1 = true;
    layout.fsdp = false;
    layout.fsdp_replicas = 1;
    bases.insert(to_string(layout));
  }
  EXPECT_EQ(names.size(), 6 * bases.size() + 3 * sharded.size());
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, AllLayouts,
    testing::Values(Case{4, 3, {}}, Case{4, 3, {}, 0, true}, Case{8, 4, {}},
                    Case{8, 2, {"model.moe.num_experts=6"}, 6},
                    Case{4, 2, {"model.moe.num_experts=6"}, 6, true},
                    Case{6,
                         6,
                         {"model.hidden_size=96", "model.num_attention_heads=12",
                          "model.num_kv_heads=2", "model.ffn_hidden_size=96",
                          "model.encoder_seq_length=24", "data.global_batch_size=36"}}),
    [](const auto& test) {
      return "Ranks" + std::to_string(test.param.ranks) +
             (test.param.num_experts > 0 ? "Experts" : "") +
             (test.param.ring_attention ? "Contexts" : "");
    });

TEST(AllLayouts, CopiesAreNotOnlyPowersOfTwo) {
  std::set<std::string> names;
  for (const Layout& layout : all_layouts(6, 1)) names.insert(to_string(layout));
  EXPECT_THAT(names,
              testing::IsSupersetOf({"TP6 ZeRO1 KV3", "TP6 KV6", "TP3 DP2 SP ZeRO1 KV3 full"}));
}

}  // namespace
}  // namespace trellis::trainer
