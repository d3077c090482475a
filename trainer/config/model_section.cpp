#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "trainer/config/hf_model_config.h"
#include "trainer/config/sections.h"
#include "trainer/data/byte_tokenizer.h"

namespace trellis::trainer {
namespace {

constexpr double kDefaultRopeTheta = 10000;

/// The YAML's value overrides config.json's; one of them must be there.
int read_size(SectionReader& reader, const std::string& key, const std::optional<int>& from_json) {
  return from_json ? reader.positive(key, *from_json) : reader.required_positive(key);
}

double read_positive(SectionReader& reader, const std::string& key, double default_value) {
  const double value = reader.get<double>(key, default_value);
  if (value > 0) return value;
  reader.problem(key, fmt::format("must be greater than 0, got {}", value));
  return default_value;
}

/// Megatron models call it position_freq_base, Hugging Face models rope_theta.
double read_rope_theta(SectionReader& reader, bool hf, double default_value) {
  const std::string key = hf ? "rope_theta" : "position_freq_base";
  const std::string other = hf ? "position_freq_base" : "rope_theta";
  if (reader.has(other)) {
    reader.problem(other, fmt::format("belongs to model_source {}; with model_source {} write `{}`", hf ? "megatron" : "hf",
                                      hf ? "hf" : "megatron", key));
  }
  return read_positive(reader, key, default_value);
}

HfModelConfig read_model_config(SectionReader& reader, bool hf) {
  const auto file = reader.optional<std::string>("model_config");
  if (!file) return {};
  if (hf) return read_hf_model_config(*file, reader, "model_config");
  reader.problem("model_config", "belongs to model_source hf; with model_source megatron write the sizes in section `model`");
  return {};
}

/// At least the tokenizer's vocabulary, padded so that it divides into equal shards.
int read_vocabulary(SectionReader& reader, const std::optional<int>& from_json, int divisor, int tensor_model_parallel_size) {
  const int size = reader.positive("vocab_size", from_json.value_or(kByteVocabularySize));
  if (reader.good({"vocab_size"}) && size < kByteVocabularySize) {
    reader.problem("vocab_size", fmt::format("{} is smaller than the tokenizer's vocabulary; the byte-level tokenizer needs at least {}", size,
                                             kByteVocabularySize));
  }
  const std::int64_t multiple = std::int64_t{divisor} * tensor_model_parallel_size;
  const std::int64_t padded = (size + multiple - 1) / multiple * multiple;
  if (padded > std::numeric_limits<int>::max()) {
    reader.problem("vocab_size", fmt::format("{} padded to a multiple of make_vocab_size_divisible_by {} × TP {} = {} does not fit in 32 bits",
                                             size, divisor, tensor_model_parallel_size, padded));
    return size;
  }
  return static_cast<int>(padded);
}

/// The size of a head is always hidden_size / num_attention_heads; NxDT's key may only repeat it.
void check_kv_channels(SectionReader& reader, const ModelSection& section) {
  const auto channels = reader.optional_positive("kv_channels");
  if (!channels || !reader.good({"hidden_size", "num_attention_heads"})) return;
  const int derived = section.hidden_size / section.num_attention_heads;
  if (*channels == derived) return;
  reader.problem("kv_channels", fmt::format("{} is not carried out in this version; remove it or set it to hidden_size / num_attention_heads = {}",
                                            *channels, derived));
}

}  // namespace

ModelSection read_model(SectionReader& reader, const std::string& model_source, int tensor_model_parallel_size) {
  const bool hf = model_source == "hf";
  const HfModelConfig json = read_model_config(reader, hf);
  ModelSection section;
  section.num_layers = read_size(reader, "num_layers", json.num_hidden_layers);
  section.hidden_size = read_size(reader, "hidden_size", json.hidden_size);
  section.ffn_hidden_size = read_size(reader, "ffn_hidden_size", json.intermediate_size);
  section.num_attention_heads = read_size(reader, "num_attention_heads", json.num_attention_heads);
  section.num_kv_heads = reader.positive("num_kv_heads", json.num_key_value_heads.value_or(section.num_attention_heads));
  section.encoder_seq_length = reader.required_positive("encoder_seq_length");
  section.max_position_embeddings =
      reader.positive("max_position_embeddings", json.max_position_embeddings.value_or(section.encoder_seq_length));
  section.make_vocab_size_divisible_by = reader.positive("make_vocab_size_divisible_by", hf ? 1 : section.make_vocab_size_divisible_by);
  section.vocab_size = read_vocabulary(reader, json.vocab_size, section.make_vocab_size_divisible_by, tensor_model_parallel_size);
  section.layernorm_epsilon = read_positive(reader, "layernorm_epsilon", json.rms_norm_eps.value_or(section.layernorm_epsilon));
  section.rope_theta = read_rope_theta(reader, hf, json.rope_theta.value_or(kDefaultRopeTheta));
  section.init_method_std = read_positive(reader, "init_method_std", json.initializer_range.value_or(section.init_method_std));
  section.do_layer_norm_weight_decay = reader.get<bool>("do_layer_norm_weight_decay", section.do_layer_norm_weight_decay);
  check_kv_channels(reader, section);
  return section;
}

}  // namespace trellis::trainer
