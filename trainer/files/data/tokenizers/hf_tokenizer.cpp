#include "trainer/files/data/tokenizers/hf_tokenizer.h"

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/input_file.h"
#include "trainer/config/sections/hub_tokens.h"
#include "trainer/files/data/tokenizers/bpe_files.h"
#include "trainer/files/data/tokenizers/piece_models.h"
#include "trainer/files/data/tokenizers/post_processor.h"
#include "trainer/files/data/tokenizers/tiktoken_file.h"
#include "trainer/files/data/tokenizers/word_tokenizer.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Pattern of cl100k_base and Llama 3.
constexpr const char* kTiktokenPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// Special tokens by name.
SpecialIds read_special_ids(const fs::path& folder, const WordTokenizer& tokenizer) {
  SpecialIds special;
  const nlohmann::ordered_json named = named_special_tokens(folder);
  const auto take = [&](const char* key, std::optional<std::int32_t>& id) {
    const auto found = named.find(key);
    if (found == named.end()) return;
    id = tokenizer.id_of(found->is_object() ? found->value("content", "")
                                            : found->get<std::string>());
  };
  take("eos_token", special.eos);
  take("bos_token", special.bos);
  take("pad_token", special.pad);
  return special;
}

std::unique_ptr<WordModel> read_model(const JsonReader& model, bool byte_level) {
  const std::string type = model["type"].text_or("BPE");  // old files name no type
  if (type == "BPE") return std::make_unique<BpeModel>(read_bpe_model(model, byte_level));
  if (type != "WordPiece" && type != "Unigram" && type != "WordLevel")
    model["type"].unsupported("the model " + type + " (known: BPE, WordPiece, Unigram, WordLevel)");
  if (byte_level) model["type"].unsupported("the model " + type + " after ByteLevel");
  if (type == "WordLevel") return make_word_level(model);
  return type == "WordPiece" ? make_word_piece(model) : make_unigram(model);
}

}  // namespace

std::unique_ptr<Tokenizer> make_hf_tokenizer(const std::string& path) {
  std::error_code ignored;
  const fs::path file =
      fs::is_directory(path, ignored) ? fs::path(path) / "tokenizer.json" : fs::path(path);
  if (const std::string why = why_no_input_file(file); !why.empty()) {
    throw ConfigError("data.tokenizer.type: " + file.string() + ": " + why +
                      "; expected a directory with tokenizer.json, or that file (names of models "
                      "on a hub are not fetched: save the tokenizer with "
                      "AutoTokenizer.from_pretrained(…).save_pretrained(DIRECTORY))");
  }
  const json document = read_json_file(file.string());
  const JsonReader root(document, file.string());
  if (!document.is_object() || !document.contains("model"))
    root.wrong("a tokenizer.json with the member \"model\"");
  PreTokenizer pre_tokenizer(root["pre_tokenizer"]);
  auto model = read_model(root["model"], pre_tokenizer.byte_level());
  HubTokens tokens = read_hub_tokens(
      document, file, [&](const std::string& token) { return model->id_of(token); },
      static_cast<std::int32_t>(document.at("model").at("vocab").size()));
  auto tokenizer = std::make_unique<WordTokenizer>(
      std::move(model), std::move(tokens.added), Normalizer(root["normalizer"]),
      std::move(pre_tokenizer), TokenDecoder(root["decoder"]));
  tokenizer->set_special(read_special_ids(file.parent_path(), *tokenizer));
  try {
    tokenizer->set_affixes(read_affixes(root["post_processor"]), "");
  } catch (const ConfigError& error) {  // most records need no post-processor
    tokenizer->set_affixes({}, error.what());
  }
  tokenizer->set_notes(std::move(tokens.notes));
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(const std::string& file,
                                                   const std::string& type) {
  const BpeTables tables = read_tiktoken_file(file);
  auto model = std::make_unique<BpeModel>(tables);
  std::vector<AddedToken> added;
  SpecialIds special;
  const std::int32_t next = model->vocab_size();
  if (type == "llama3") {
    const char* first[] = {"<|begin_of_text|>", "<|end_of_text|>"};
    for (std::int32_t i = 0; i < 256; ++i)
      added.push_back(
          {.id = next + i,
           .content = i < 2 ? first[i] : "<|reserved_special_token_" + std::to_string(i - 2) + "|>",
           .special = true});
    special = {next + 1, next, std::nullopt};
  } else if (type == "cl100k_base") {
    added.push_back({.id = next + 1, .content = "<|endoftext|>", .special = true});
    special = {next + 1, std::nullopt, std::nullopt};
  } else if (!type.empty()) {
    throw ConfigError(
        "data.tokenizer.type: expected llama3 or cl100k_base with library tiktoken, "
        "or none, got \"" +
        type + "\"");
  }
  const json words = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", kTiktokenPattern}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const json decoder = {{"type", "ByteLevel"}}, none;
  auto tokenizer = std::make_unique<WordTokenizer>(
      std::move(model), std::move(added), Normalizer(JsonReader(none, file)),
      PreTokenizer(JsonReader(words, file)), TokenDecoder(JsonReader(decoder, file)));
  tokenizer->set_special(special);
  return tokenizer;
}

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& vocab_file,
                                               const std::string& merge_file) {
  const std::string end_of_text = "<|endoftext|>";
  const json vocabulary = read_json_file(vocab_file);
  BpeTables tables;
  tables.file = vocab_file;
  tables.byte_level = true;
  read_vocabulary(JsonReader(vocabulary, vocab_file), tables);
  read_merge_file(merge_file, tables);
  std::vector<AddedToken> added;
  const auto end = tables.vocab.find(end_of_text);
  if (end != tables.vocab.end())
    added.push_back({.id = end->second, .content = end_of_text, .special = true});
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const json none;
  auto tokenizer = std::make_unique<WordTokenizer>(
      std::make_unique<BpeModel>(tables), std::move(added),
      Normalizer(JsonReader(none, vocab_file)), PreTokenizer(JsonReader(byte_level, vocab_file)),
      TokenDecoder(JsonReader(byte_level, vocab_file)));
  if (end != tables.vocab.end()) tokenizer->set_special({end->second, end->second, std::nullopt});
  return tokenizer;
}

}  // namespace trellis::trainer
