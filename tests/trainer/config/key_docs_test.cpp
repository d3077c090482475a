#include "trainer/config/load/key_docs.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace trellis::trainer {
namespace {

KeyDoc doc_of(const std::string& section, const std::string& key) {
  const std::vector<KeyDoc> docs = document_keys();
  const auto found = std::ranges::find_if(
      docs, [&](const KeyDoc& doc) { return doc.section == section && doc.key == key; });
  return found == docs.end() ? KeyDoc{} : *found;
}

TEST(KeyDocs, EveryKeyThatActsHasATypeAndADefault) {
  for (const KeyDoc& doc : document_keys()) {
    if (doc.use != KeyUse::kSupported) continue;
    EXPECT_NE(doc.type, "") << doc.section << "." << doc.key;
    EXPECT_NE(doc.default_value, "") << doc.section << "." << doc.key;
  }
}

TEST(KeyDocs, TypesAndDefaultsAreTheReaders) {
  const KeyDoc tp = doc_of("distributed_strategy", "tensor_model_parallel_size");
  EXPECT_EQ(tp.type, "integer ≥ 1");
  EXPECT_EQ(tp.default_value, "1");
  EXPECT_EQ(tp.origin, "NxDT");
  EXPECT_EQ(doc_of("distributed_strategy", "zero1").type, "boolean");
  EXPECT_EQ(doc_of("data", "dataloader_type").type, "one of single or cyclic");
  EXPECT_EQ(doc_of("data", "micro_batch_size").default_value, "required");
  EXPECT_EQ(doc_of("", "software").origin, "Trellis");
}

TEST(KeyDocs, ADefaultThatDependsOnTheModelsSourceNamesBoth) {
  EXPECT_EQ(doc_of("model", "use_scaled_init_method").default_value, "megatron: true; hf: false");
}

TEST(KeyDocs, ArgumentsOfOptimizersNameTheirOwners) {
  const KeyDoc momentum = doc_of("model.optim", "momentum");
  EXPECT_EQ(momentum.type, "number");
  EXPECT_NE(momentum.default_value.find("sgd: 0"), std::string::npos) << momentum.default_value;
}

TEST(KeyDocs, KeysThatDoNotActSayWhy) {
  for (const KeyDoc& doc : document_keys()) {
    if (doc.use == KeyUse::kSupported || doc.use == KeyUse::kSection) continue;
    EXPECT_NE(doc.why, "") << doc.section << "." << doc.key;
    EXPECT_EQ(doc.type, "") << doc.section << "." << doc.key;
  }
}

}  // namespace
}  // namespace trellis::trainer
