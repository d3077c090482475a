#include "trainer/checkpoint/training/lora_config.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace trellis::checkpoint {
namespace {

using nlohmann::json;

Value value_of(const json& part) {
  if (part.is_boolean()) return Value(part.get<bool>());
  if (part.is_number_integer()) return Value(part.get<std::int64_t>());
  if (part.is_number()) return Value(part.get<double>());
  if (part.is_string()) return Value(part.get<std::string>());
  if (part.is_array()) {
    Value::List items;
    for (const json& each : part) items.push_back(value_of(each));
    return Value::list(std::move(items));
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, each] : part.items()) items.emplace_back(key, value_of(each));
  return part.is_object() ? Value::dict(std::move(items)) : Value();
}

}  // namespace

json lora_config(const trainer::LoraSection& lora) {
  return {
      {"peft_type", "LORA"},
      {"r", lora.rank},
      {"lora_rank", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", lora.dropout},
      {"use_rslora", lora.use_rslora},
      {"bias", lora.bias},
      {"init_lora_weights", lora.gaussian ? json("gaussian") : json(true)},
      {"target_modules", lora.target_regex.empty() ? json(lora.targets) : json(lora.target_regex)},
      {"modules_to_save", lora.modules_to_save},
      {"save_lora_base", lora.save_base},
      {"merge_lora", lora.merge},
      {"save_lora_config_adapter", lora.config_in_file}};
}

Value lora_config_value(const trainer::LoraSection& lora) { return value_of(lora_config(lora)); }

}  // namespace trellis::checkpoint
