#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "analysis/import/hugging_face_parts.h"
#include "analysis/import/key_words.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"
#include "base/nearest.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::analysis::hugging_face {
namespace {

using nlohmann::json;

/// Files of both kinds have a few kilobytes.
constexpr std::int64_t kMostBytes = 1 << 20;

struct KeyPlace {
  std::string name;
  int line;
};

/// The keys of the outermost object. REQUIRES: `text` parses as JSON.
std::vector<KeyPlace> places_of_keys(const std::string& text) {
  std::vector<KeyPlace> places;
  int depth = 0, line = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    line += c == '\n';
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c != '"') continue;
    const std::size_t begin = i;
    for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    const std::size_t next = text.find_first_not_of(" \t\r\n", i + 1);
    if (depth != 1 || next == std::string::npos || text[next] != ':') continue;
    places.push_back({json::parse(text.substr(begin, i + 1 - begin)).get<std::string>(), line});
  }
  return places;
}

bool is_plain(const std::string& text) {
  const bool safe = std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '/' || c == '-';
  });
  if (!safe || text.empty() ||
      (std::isalpha(static_cast<unsigned char>(text.front())) == 0 && text.front() != '/'))
    return false;
  return !trainer::is_neutral(text, "true|false|null|yes|no|on|off|y|n") &&
         !trainer::is_neutral(text, "inf|nan|infinity");
}

}  // namespace

JsonObject JsonObject::read(const std::string& file, const std::string& expected) {
  return parse(read_input_file(file, kMostBytes), file, expected);
}

JsonObject JsonObject::parse(const std::string& text, const std::string& file,
                             const std::string& expected) {
  json document = parse_json(text, file, expected);
  if (!document.is_object())
    throw ConfigError(fmt::format("{}: this is a JSON {}, not an object; expected {}", file,
                                  document.type_name(), expected));
  JsonObject object;
  object.file_ = file;
  std::set<std::string> seen;
  Problems problems;
  for (KeyPlace& place : places_of_keys(text)) {
    const std::string where = fmt::format("{}:{}", file, place.line);
    if (!seen.insert(place.name).second) {
      problems.add(where + ":" + place.name, "this key is there twice; remove one of them");
      continue;
    }
    object.keys_.push_back({place.name, std::move(document[place.name]), where});
  }
  problems.throw_if_any();
  return object;
}

const json* JsonObject::find(std::string_view name) const {
  const auto found = std::ranges::find(keys_, name, &JsonKey::name);
  return found == keys_.end() || found->value.is_null() ? nullptr : &found->value;
}

SourceKey source_of(const std::string& prefix, const JsonKey& key) {
  const bool named_so =
      key.name == "token" || key.name.ends_with("_token") || key.name.ends_with("api_key");
  const bool secret = named_so && key.value.is_string();
  return {prefix + terminal_line(key.name), secret ? "\"<hidden>\"" : key.value.dump(), key.where};
}

std::string yaml_text(const std::string& text) { return is_plain(text) ? text : json(text).dump(); }

std::string yaml_number(double number) { return fmt::format("{}", number); }

ImportedKey unknown(SourceKey source, const std::string& name,
                    const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return {std::move(source),
          ImportStatus::kUnclassified,
          {},
          "this program knows no such key" +
              (nearest.empty() ? "" : "; did you mean `" + nearest + "`?")};
}

bool is_neutral_value(const json& value, std::string_view neutral) {
  const bool nothing = value.is_null() ||
                       ((value.is_object() || value.is_array()) && value.empty()) ||
                       (value.is_string() && value.get_ref<const std::string&>().empty());
  if (nothing) return true;
  if (value.is_structured()) return false;
  return trainer::is_neutral(value.is_string() ? value.get<std::string>() : value.dump(), neutral);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for_each_word(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

const Row* find_row(const std::vector<Row>& rows, std::string_view key) {
  for (const Row& row : rows) {
    const auto words = words_of(row.keys);
    if (std::ranges::find(words, key) != words.end()) return &row;
  }
  return nullptr;
}

std::vector<std::string> keys_of(const std::vector<Row>& rows) {
  std::vector<std::string> keys;
  for (const Row& row : rows) std::ranges::move(words_of(row.keys), std::back_inserter(keys));
  return keys;
}

const json* Arguments::find(std::string_view name) const {
  return object_ == nullptr ? nullptr : object_->find(name);
}

bool Arguments::has(std::string_view name) const { return find(name) != nullptr; }

void Arguments::problem(std::string_view name, const std::string& expected) const {
  if (!bad_.emplace(name).second) return;
  const auto key = std::ranges::find(object_->keys(), name, &JsonKey::name);
  problems_->add(fmt::format("{}: training_args.{}", key->where, name),
                 fmt::format("expected {}, got {}", expected, key->value.dump()));
}

std::optional<double> Arguments::number(std::string_view name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  problem(name, "a number");
  return std::nullopt;
}

std::optional<std::int64_t> Arguments::integer(std::string_view name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  // transformers writes 3 epochs as 3.0.
  const double number = value->is_number() ? value->get<double>() : 0.5;
  if (number == std::floor(number) && std::abs(number) <= 1e15)
    return static_cast<std::int64_t>(number);
  problem(name, "an integer");
  return std::nullopt;
}

std::optional<std::int64_t> Arguments::positive(std::string_view name) const {
  const auto value = integer(name);
  if (!value || (*value >= 1 && *value <= INT32_MAX)) return value;
  problem(name, "an integer of at least 1");
  return std::nullopt;
}

std::optional<bool> Arguments::boolean(std::string_view name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  problem(name, "true or false");
  return std::nullopt;
}

std::optional<std::string> Arguments::text(std::string_view name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  problem(name, "a text");
  return std::nullopt;
}

void refuse_contradictions(const JsonObject& arguments, Problems& problems) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"eval_strategy", "evaluation_strategy"},
      {"per_device_train_batch_size", "per_gpu_train_batch_size"},
      {"per_device_eval_batch_size", "per_gpu_eval_batch_size"}};
  const auto key_of = [&](std::string_view name) {
    return std::ranges::find(arguments.keys(), name, &JsonKey::name);
  };
  for (const auto& [name, older] : kNames) {
    const json *value = arguments.find(name), *other = arguments.find(older);
    if (value == nullptr || other == nullptr || *value == *other) continue;
    problems.add(fmt::format("{}: training_args.{}", key_of(older)->where, older),
                 fmt::format("asks for {}, and {}: training_args.{} for {}: remove one of the two",
                             other->dump(), key_of(name)->where, name, value->dump()));
  }
}

std::string Arguments::first_of(std::string_view names) const {
  for (const std::string& name : words_of(names)) {
    if (has(name)) return name;
  }
  return "";
}

}  // namespace trellis::analysis::hugging_face
