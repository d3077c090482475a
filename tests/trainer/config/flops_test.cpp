#include <gtest/gtest.h>

#include "trainer/config/run_config.h"

namespace trellis::trainer {
namespace {

RunConfig model(int layers, int hidden, int ffn, int heads, int kv_heads, int vocabulary) {
  RunConfig config;
  config.model.num_layers = layers;
  config.model.hidden_size = hidden;
  config.model.ffn_hidden_size = ffn;
  config.model.num_attention_heads = heads;
  config.model.num_kv_heads = kv_heads;
  config.model.vocab_size = vocabulary;
  config.model.encoder_seq_length = 8;
  config.data.global_batch_size = 2;
  return config;
}

TEST(NumParameters, EqualsPublishedModels) {
  EXPECT_EQ(model(32, 4096, 14336, 32, 8, 128256).num_parameters(), 8'030'261'248);   // Llama 3 8B
  EXPECT_EQ(model(32, 4096, 11008, 32, 32, 32000).num_parameters(), 6'738'415'616);   // Llama 2 7B
  EXPECT_EQ(model(80, 8192, 28672, 64, 8, 128256).num_parameters(), 70'553'706'496);  // Llama 3 70B
}

TEST(ModelFlopsPerStep, CountsEachProductOfATinyModel) {
  // 16 tokens. One layer of h = 4, f = 6, 2 heads, 1 kv head: Q 4×4, K and V 4×2, O 4×4, three of
  // 4×6, norms 2·4; final norm 4; head 10×4.
  const double multiplied = 16 + 8 + 8 + 16 + 72 + 8 + 4 + 40;
  // Scores and values: 2·2·h·s forward, three times with backward, half of it under the causal
  // mask.
  const double attention = 3.0 * (2 * 2 * 4 * 8) / 2;
  EXPECT_DOUBLE_EQ(model(1, 4, 6, 2, 1, 10).model_flops_per_step(),
                   16 * (6 * multiplied + attention));
}

TEST(ModelFlopsPerStep, GrowsWithTheBatchAndDoesNotOverflow) {
  RunConfig large = model(126, 16384, 53248, 128, 8, 128256);
  large.model.encoder_seq_length = 131072;
  const double one = large.model_flops_per_step();
  large.data.global_batch_size *= 1000;
  EXPECT_DOUBLE_EQ(large.model_flops_per_step(), 1000 * one);
  EXPECT_GT(one, 1e17);
}

}  // namespace
}  // namespace trellis::trainer
