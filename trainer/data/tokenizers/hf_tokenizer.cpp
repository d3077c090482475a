#include "trainer/data/tokenizers/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "trainer/data/tokenizers/added_tokens.h"
#include "trainer/data/tokenizers/bpe_files.h"
#include "trainer/data/tokenizers/decoder.h"
#include "trainer/data/tokenizers/normalizer.h"
#include "trainer/data/tokenizers/piece_models.h"
#include "trainer/data/tokenizers/pre_tokenizer.h"
#include "trainer/data/tokenizers/tiktoken_file.h"
#include "trainer/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Of cl100k_base and Llama 3.
constexpr const char* kTiktokenPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct SpecialIds {
  std::optional<std::int32_t> eos, bos, pad;
};

/// text → added tokens and texts between → normalizer → words → tokens.
class WordTokenizer : public Tokenizer {
 public:
  WordTokenizer(std::unique_ptr<WordModel> model, std::vector<AddedToken> added,
                Normalizer normalizer, PreTokenizer pre_tokenizer, TokenDecoder decoder)
      : model_(std::move(model)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        decoder_(std::move(decoder)),
        raw_tokens_(select(added, false)),
        normalized_tokens_(select(added, true)) {
    for (const AddedToken& token : added) {
      vocab_size_ = std::max(vocab_size_, token.id + 1);
      added_content_[token.id] = token.content;
    }
    vocab_size_ = std::max(vocab_size_, model_->vocab_size());
    constexpr const char* kSpaceMark = "\xE2\x96\x81";  // ▁, of SentencePiece
    if (!pre_tokenizer_.byte_level() && model_->can_cut_before(kSpaceMark))
      pre_tokenizer_.cut_before(kSpaceMark);
  }

  void set_special(const SpecialIds& special) { special_ = special; }
  [[nodiscard]] std::optional<std::int32_t> id_of(const std::string& token) const {
    for (const auto& [id, content] : added_content_) {
      if (content == token) return id;
    }
    return model_->id_of(token);
  }

  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> eos_id() const override { return special_.eos; }
  std::optional<std::int32_t> bos_id() const override { return special_.bos; }
  std::optional<std::int32_t> pad_id() const override { return special_.pad; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    if (const std::size_t good = valid_utf8_prefix(text); good != text.size()) {
      throw ConfigError("a text to be tokenised is no UTF-8: byte " + std::to_string(good) +
                        " of " + std::to_string(text.size()));
    }
    if (raw_tokens_.empty()) return encode_text(text, true, ids);
    for (const TextPart& part : raw_tokens_.split(text)) {
      if (part.id) {
        ids.push_back(*part.id);
      } else {
        encode_text(text.substr(part.range.begin, part.range.end - part.range.begin),
                    part.range.begin == 0, ids);
      }
    }
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<std::string> tokens;
    for (const std::int32_t id : ids) {
      if (const auto added = added_content_.find(id); added != added_content_.end()) {
        tokens.push_back(added->second);
      } else if (id >= 0 && id < model_->vocab_size()) {
        tokens.push_back(model_->token(id));
      }
    }
    return decoder_.decode(std::move(tokens));
  }

 private:
  /// Those that are looked for before the normalizer, or after it.
  AddedTokens select(const std::vector<AddedToken>& added, bool normalized) const {
    std::vector<AddedToken> chosen;
    for (const AddedToken& token : added) {
      if (token.normalized != normalized) continue;
      chosen.push_back(token);
      if (normalized) chosen.back().content = normalizer_.apply(token.content);
    }
    return AddedTokens(std::move(chosen));
  }

  void encode_text(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) {
    if (normalizer_.changes_nothing()) return encode_normal(text, at_start, ids);
    encode_normal(normalizer_.apply(text), at_start, ids);
  }

  void encode_normal(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) {
    if (normalized_tokens_.empty()) return encode_words(text, at_start, ids);
    for (const TextPart& part : normalized_tokens_.split(text)) {
      if (part.id) {
        ids.push_back(*part.id);
      } else {
        encode_words(text.substr(part.range.begin, part.range.end - part.range.begin),
                     at_start && part.range.begin == 0, ids);
      }
    }
  }

  void encode_words(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) {
    pre_tokenizer_.for_each_word(text, at_start,
                                 [&](std::string_view word) { model_->encode_word(word, ids); });
  }

  std::unique_ptr<WordModel> model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::unordered_map<std::int32_t, std::string> added_content_;
  std::int32_t vocab_size_ = 0;
  SpecialIds special_;
};

std::vector<AddedToken> read_added_tokens(const JsonReader& list) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  for (const JsonReader& entry : list.elements()) {
    AddedToken token;
    token.id = entry["id"].id();
    token.content = entry["content"].text();
    token.single_word = entry["single_word"].flag(false);
    token.lstrip = entry["lstrip"].flag(false);
    token.rstrip = entry["rstrip"].flag(false);
    token.special = entry["special"].flag(false);
    token.normalized = entry["normalized"].flag(!token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// "</s>", or {"content": "</s>", …}; nothing when absent.
std::optional<std::string> special_text(const JsonReader& token) {
  if (token.is_null()) return std::nullopt;
  return token.value().is_object() ? token["content"].text() : token.text();
}

/// Special tokens by name, from the first of two files that names each.
SpecialIds read_special_ids(const fs::path& directory, const WordTokenizer& tokenizer) {
  SpecialIds special;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string file = (directory / name).string();
    if (!why_no_input_file(file).empty()) continue;
    const json document = read_json_file(file);
    const JsonReader reader(document, file);
    const auto take = [&](const char* key, std::optional<std::int32_t>& id) {
      const auto text = special_text(reader[key]);
      if (id || !text) return;
      id = tokenizer.id_of(*text);
      if (!id) reader[key].wrong("a token of tokenizer.json");
    };
    take("eos_token", special.eos);
    take("bos_token", special.bos);
    take("pad_token", special.pad);
  }
  return special;
}

std::unique_ptr<WordModel> read_model(const JsonReader& model, bool byte_level) {
  const std::string type = model["type"].text_or("BPE");  // old files name no type
  if (type == "BPE") return std::make_unique<BpeModel>(read_bpe_model(model, byte_level));
  if (type != "WordPiece" && type != "Unigram")
    model["type"].unsupported("the model " + type + " (known: BPE, WordPiece, Unigram)");
  if (byte_level) model["type"].unsupported("the model " + type + " after ByteLevel");
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
  auto tokenizer = std::make_unique<WordTokenizer>(
      read_model(root["model"], pre_tokenizer.byte_level()),
      read_added_tokens(root["added_tokens"]), Normalizer(root["normalizer"]),
      std::move(pre_tokenizer), TokenDecoder(root["decoder"]));
  tokenizer->set_special(read_special_ids(file.parent_path(), *tokenizer));
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
