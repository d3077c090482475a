#include "trainer/config/hf_model_config.h"

#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trellis::trainer {
namespace {

using nlohmann::json;

class JsonReader {
 public:
  JsonReader(const json& object, const std::string& file, SectionReader& reader, const std::string& key)
      : object_(object), file_(file), reader_(reader), key_(key) {}

  void positive(const char* name, std::optional<int>& value) {
    const json* found = find(name);
    if (found == nullptr) return;
    const bool legal = found->is_number_integer() && *found > 0 && *found <= std::numeric_limits<int>::max();
    if (!legal) return problem(name, "expected an integer of at least 1, got " + found->dump());
    value = found->get<int>();
  }

  void positive(const char* name, std::optional<double>& value) {
    const json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_number() || *found <= 0) return problem(name, "expected a number greater than 0, got " + found->dump());
    value = found->get<double>();
  }

  /// A property of the model that is carried out with one value only; an absent key has this value.
  void only(const char* name, const json& value) {
    const json* found = find(name);
    if (found == nullptr || *found == value) return;
    problem(name, fmt::format("{} is not carried out in this version; only {} is", found->dump(), value.dump()));
  }

  void no_other_head_size(const HfModelConfig& config) {
    const json* found = find("head_dim");
    if (found == nullptr || !config.hidden_size || !config.num_attention_heads) return;
    const int derived = *config.hidden_size / *config.num_attention_heads;
    if (*found != derived) {
      problem("head_dim", fmt::format("{} is not carried out in this version; only hidden_size / num_attention_heads = {} is",
                                      found->dump(), derived));
    }
  }

  void problem(const char* name, const std::string& text) {
    reader_.problem(key_, fmt::format("{}: {}: {}", file_, name, text));
  }

 private:
  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  const json& object_;
  const std::string& file_;
  SectionReader& reader_;
  const std::string& key_;
};

void check_shape_is_llama(JsonReader& fields) {
  fields.only("model_type", "llama");
  fields.only("hidden_act", "silu");
  fields.only("rope_scaling", nullptr);
  fields.only("tie_word_embeddings", false);
  fields.only("attention_bias", false);
  fields.only("mlp_bias", false);
  fields.only("attention_dropout", 0.0);
}

}  // namespace

HfModelConfig read_hf_model_config(const std::filesystem::path& file, SectionReader& reader, const std::string& key) {
  HfModelConfig config;
  std::ifstream stream(file);
  if (!stream || std::filesystem::is_directory(file)) {
    reader.problem(key, fmt::format("cannot read {}: expected a Hugging Face config.json; check that it exists and is readable", file.string()));
    return config;
  }
  const json object = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    reader.problem(key, fmt::format("{} is not a JSON object; expected a Hugging Face config.json", file.string()));
    return config;
  }
  const std::string name = file.string();
  JsonReader fields(object, name, reader, key);
  fields.positive("num_hidden_layers", config.num_hidden_layers);
  fields.positive("hidden_size", config.hidden_size);
  fields.positive("intermediate_size", config.intermediate_size);
  fields.positive("num_attention_heads", config.num_attention_heads);
  fields.positive("num_key_value_heads", config.num_key_value_heads);
  fields.positive("max_position_embeddings", config.max_position_embeddings);
  fields.positive("vocab_size", config.vocab_size);
  fields.positive("rope_theta", config.rope_theta);
  fields.positive("rms_norm_eps", config.rms_norm_eps);
  fields.positive("initializer_range", config.initializer_range);
  check_shape_is_llama(fields);
  fields.no_other_head_size(config);
  return config;
}

}  // namespace trellis::trainer
