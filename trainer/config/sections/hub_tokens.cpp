#include "trainer/config/sections/hub_tokens.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMostId = 1 << 28;
constexpr std::array<const char*, 7> kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

[[noreturn]] void wrong(const std::string& where, const std::string& expected, const json& got) {
  throw ConfigError(
      where + ": expected " + expected + ", got " +
      terminal_line(got.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60)));
}

/// A document of a tokenizer's folder; an empty object when there is no such file.
json read_document(const fs::path& file) {
  if (!why_no_input_file(file).empty()) return json::object();
  json document = parse_json(read_input_file(file), file.string(), "a file of a tokenizer");
  if (!document.is_object())
    throw ConfigError(file.string() + ": expected an object, got " + document.type_name());
  return document;
}

bool is_set(const json& document, const char* key) {
  const auto found = document.find(key);
  return found != document.end() && !found->is_null();
}

/// {"content": …, flags} or the text alone, which is special.
AddedToken token_of(const json& value, const std::string& where, bool special) {
  AddedToken token;
  if (value.is_string()) {
    token.content = value.get<std::string>();
    token.special = true;
    return token;
  }
  const auto content = value.is_object() ? value.find("content") : value.end();
  if (!value.is_object() || content == value.end() || !content->is_string())
    wrong(where, "a token, {\"content\": \"…\", …}", value);
  token.content = content->get<std::string>();
  const auto flag = [&](const char* key, bool otherwise) {
    const auto found = value.find(key);
    if (found == value.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) wrong(where + "." + key, "true or false", *found);
    return found->get<bool>();
  };
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.special = flag("special", false) || special;
  token.normalized = flag("normalized", !token.special);
  return token;
}

std::int64_t id_of(const json& value, const std::string& where) {
  if (value.is_number_integer() && value >= 0 && value <= kMostId) return value.get<std::int64_t>();
  wrong(where, "a token id, 0 … " + std::to_string(kMostId), value);
}

/// A token as a file has it; `id`: what it states, −1: nothing.
struct FoundToken {
  AddedToken token;
  std::int64_t id = -1;
  std::string where;
};

class Tokens {
 public:
  Tokens(const std::function<std::optional<std::int32_t>(const std::string&)>& id_in_model,
         std::int32_t model_tokens)
      : id_in_model_(id_in_model), model_tokens_(model_tokens) {}

  void add(const FoundToken& found) {
    AddedToken token = found.token;
    if (token.content.empty()) return;
    const auto known = ids_.find(token.content);
    const auto in_model = known == ids_.end() ? id_in_model_(token.content) : std::nullopt;
    const bool fresh = known == ids_.end() && !in_model;
    token.id = fresh ? next_ : known == ids_.end() ? *in_model : known->second;
    if (fresh) ++next_;
    if (known == ids_.end() && token.id >= next_) next_ = token.id + 1;
    if (found.id < 0 ? fresh : found.id != token.id) note(found, token.id);
    ids_[token.content] = token.id;
    by_id_[token.id] = std::move(token);
  }
  [[nodiscard]] bool has(const std::string& content) const { return ids_.contains(content); }
  [[nodiscard]] HubTokens finish() {
    for (auto& [id, token] : by_id_) result_.added.push_back(std::move(token));
    return std::move(result_);
  }

 private:
  void note(const FoundToken& found, std::int32_t id) {
    result_.notes.push_back(
        found.where + ": " + terminal_line(found.token.content) + " has the id " +
        std::to_string(id) +
        (found.id < 0 ? ", the next free one: tokenizer.json does not have it"
                      : ", as transformers gives it, and not " + std::to_string(found.id) +
                            ", which the file states: added tokens get the next free ids"));
  }

  const std::function<std::optional<std::int32_t>(const std::string&)>& id_in_model_;
  std::int32_t model_tokens_;
  std::int32_t next_ = model_tokens_;
  std::map<std::string, std::int32_t> ids_;
  std::map<std::int32_t, AddedToken> by_id_;
  HubTokens result_;
};

void add_tokenizer_tokens(const json& tokenizer, const fs::path& file, Tokens& tokens) {
  if (!is_set(tokenizer, "added_tokens")) return;
  const json& list = tokenizer.at("added_tokens");
  if (!list.is_array()) wrong(file.string() + ": added_tokens", "a list", list);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = file.string() + ": added_tokens[" + std::to_string(i) + "]";
    const AddedToken token = token_of(list[i], where, false);
    tokens.add({token, id_of(list[i].value("id", json()), where + ".id"), where});
  }
}

std::string text_of(const json& token) {
  const json text = token.is_object() ? token.value("content", json()) : token;
  return text.is_string() ? text.get<std::string>() : "";
}

/// Contents of special tokens: by name, and additional ones.
std::vector<std::string> special_texts(const ordered_json& named, const json& extra) {
  std::vector<std::string> texts;
  for (const auto& member : named.items()) texts.push_back(text_of(member.value()));
  for (const json& token : extra) texts.push_back(text_of(token));
  return texts;
}

/// added_tokens_decoder of tokenizer_config.json, else added_tokens.json, by id.
std::map<std::int64_t, FoundToken> decoder_tokens(const json& config, const fs::path& folder,
                                                  const std::vector<std::string>& special) {
  std::map<std::int64_t, FoundToken> found;
  const auto is_special = [&](const std::string& text) {
    return std::ranges::find(special, text) != special.end();
  };
  if (is_set(config, "added_tokens_decoder")) {
    const std::string list = (folder / "tokenizer_config.json").string() + ": added_tokens_decoder";
    const json& entries = config.at("added_tokens_decoder");
    if (!entries.is_object()) wrong(list, "an object {\"id\": {\"content\": …}}", entries);
    for (const auto& [key, value] : entries.items()) {
      const std::string where = list + "." + terminal_line(key);
      const json number = json::parse(key, nullptr, /*allow_exceptions=*/false);
      const std::int64_t id = id_of(number, where);
      if (!value.is_object()) wrong(where, "a token, {\"content\": \"…\", …}", value);
      found[id] = {token_of(value, where, is_special(text_of(value))), id, where};
    }
    return found;
  }
  const fs::path file = folder / "added_tokens.json";
  const json entries = read_document(file);
  for (const auto& [content, value] : entries.items()) {
    const std::string where = file.string() + ": " + terminal_line(content);
    const std::int64_t id = id_of(value, where);
    AddedToken token;
    token.content = content;
    token.special = is_special(content);
    token.normalized = !token.special;
    found[id] = {token, id, where};
  }
  return found;
}

/// extra_special_tokens, or additional_special_tokens as it was called before.
json extra_tokens(const fs::path& folder, const json& config) {
  const auto of = [](const json& document) {
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
      const auto found = document.find(key);
      if (found != document.end() && found->is_array() && !found->empty()) return *found;
    }
    return json::array();
  };
  json list = of(config);
  if (is_set(config, "added_tokens_decoder")) return list;
  for (const json& token : of(read_document(folder / "special_tokens_map.json")))
    if (std::ranges::find(list, token) == list.end()) list.push_back(token);
  return list;
}

}  // namespace

ordered_json named_special_tokens(const fs::path& folder) {
  ordered_json named = ordered_json::object();
  const auto take = [&](const json& document) {
    const auto put = [&](const std::string& key, const json& value) {
      if (value.is_string() || value.is_object()) named[key] = ordered_json(value);
    };
    for (const char* name : kNames)
      if (document.contains(name)) put(name, document.at(name));
    for (const auto& [key, value] : document.items())
      if (key.ends_with("_token")) put(key, value);
    const auto extra = document.find("extra_special_tokens");
    if (extra == document.end() || !extra->is_object()) return;
    for (const auto& [key, value] : extra->items()) put(key, value);
  };
  const json config = read_document(folder / "tokenizer_config.json");
  take(config);
  if (!is_set(config, "added_tokens_decoder"))
    take(read_document(folder / "special_tokens_map.json"));
  return named;
}

HubTokens read_hub_tokens(
    const json& tokenizer, const fs::path& file,
    const std::function<std::optional<std::int32_t>(const std::string&)>& id_in_model,
    std::int32_t model_tokens) {
  const fs::path folder = file.parent_path();
  const json config = read_document(folder / "tokenizer_config.json");
  const ordered_json named = named_special_tokens(folder);
  const json extra = extra_tokens(folder, config);
  Tokens tokens(id_in_model, model_tokens);
  add_tokenizer_tokens(tokenizer, file, tokens);
  for (const auto& [id, found] : decoder_tokens(config, folder, special_texts(named, extra)))
    tokens.add(found);
  const auto add_missing = [&](const json& value, const std::string& name) {
    const std::string where = (folder / "tokenizer_config.json").string() + ": " + name;
    const AddedToken token = token_of(value, where, true);
    if (!tokens.has(token.content)) tokens.add({token, -1, where});
  };
  for (const auto& [name, value] : named.items()) add_missing(json(value), name);
  for (const json& value : extra) add_missing(value, "additional_special_tokens");
  return tokens.finish();
}

}  // namespace trellis::trainer
