#include "trainer/files/data/tokenizers/bpe_files.h"

#include "base/error.h"
#include "base/escape.h"
#include "base/files/mapped_file.h"

namespace trellis::trainer {
namespace {

std::pair<std::string, std::string> two_words(std::string_view text, const std::string& where) {
  const std::size_t space = text.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos) {
    throw ConfigError(where + ": expected two tokens with one space between them, got \"" +
                      terminal_line(text.substr(0, 60)) + "\"");
  }
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

/// Either spelling: "left right", or ["left", "right"].
std::pair<std::string, std::string> read_merge(const nlohmann::json& value,
                                               const JsonReader& merges, std::size_t i) {
  const std::string where = merges.where() + "[" + std::to_string(i) + "]";
  if (value.is_string()) return two_words(value.get_ref<const std::string&>(), where);
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string())
    JsonReader(value, where).wrong("\"left right\" or [\"left\", \"right\"]");
  return {value[0].get<std::string>(), value[1].get<std::string>()};
}

void refuse_unless_null(const JsonReader& json, const std::string& what) {
  if (!json.is_null() && json.value() != "" && json.value() != 0.0) json.unsupported(what);
}

}  // namespace

void read_vocabulary(const JsonReader& json, BpeTables& tables) {
  if (!json.value().is_object()) json.wrong("an object {\"token\": id, …}");
  tables.vocab.reserve(json.value().size());
  for (const auto& entry : json.value().items()) {
    const nlohmann::json& id = entry.value();
    const bool good = id.is_number_unsigned() && id.get<std::uint64_t>() < (1U << 28);
    if (!good) JsonReader(id, json.where() + "." + entry.key()).wrong("a token id");
    tables.vocab.emplace(entry.key(), id.get<std::int32_t>());
  }
}

void read_merge_file(const std::string& file, BpeTables& tables) {
  const MappedFile mapped(file);
  std::string_view rest = mapped.text();
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    tables.merges.push_back(two_words(line, file + ":" + std::to_string(number)));
  }
}

BpeTables read_bpe_model(const JsonReader& model, bool byte_level) {
  refuse_unless_null(model["dropout"], "dropout of merges");
  BpeTables tables;
  tables.prefix = model["continuing_subword_prefix"].text_or("");
  tables.suffix = model["end_of_word_suffix"].text_or("");
  tables.file = model.file();
  tables.byte_level = byte_level;
  tables.byte_fallback = model["byte_fallback"].flag(false);
  tables.fuse_unk = model["fuse_unk"].flag(false);
  tables.ignore_merges = model["ignore_merges"].flag(false);
  if (!model["unk_token"].is_null()) tables.unk_token = model["unk_token"].text();
  read_vocabulary(model["vocab"], tables);
  const JsonReader merges = model["merges"];
  if (!merges.value().is_array()) merges.wrong("a list of merges");
  tables.merges.reserve(merges.value().size());
  for (std::size_t i = 0; i < merges.value().size(); ++i)
    tables.merges.push_back(read_merge(merges.value()[i], merges, i));
  return tables;
}

}  // namespace trellis::trainer
