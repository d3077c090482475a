#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/protobuf_fields.h"
#include "trainer/config/reader/fields.h"
#include "trainer/config/sections/byte_vocabulary.h"
#include "trainer/config/sections/hub_tokens.h"
#include "trainer/config/sections/model_readers.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

constexpr int kGpt2Vocabulary = 50257;

json read_json(const std::filesystem::path& file) {
  return why_no_input_file(file).empty()
             ? json::parse(read_input_file(file), nullptr, /*allow_exceptions=*/false)
             : json();
}

/// Those of a folder with a tokenizer.json. Empty for damaged ones, which the tokenizer refuses.
std::vector<AddedToken> added_tokens(const json& tokenizer, const json& vocabulary,
                                     const std::filesystem::path& file) {
  std::unordered_map<std::string, std::int32_t> ids;
  std::int32_t place = 0;
  if (vocabulary.is_array()) {
    for (const json& piece : vocabulary) {
      if (piece.is_array() && !piece.empty() && piece[0].is_string())
        ids[piece[0].get<std::string>()] = place;
      ++place;
    }
  }
  const auto id_in_model = [&](const std::string& token) -> std::optional<std::int32_t> {
    if (vocabulary.is_object()) {
      const auto found = vocabulary.find(token);
      const bool good = found != vocabulary.end() && found->is_number_integer();
      return good ? std::optional(found->get<std::int32_t>()) : std::nullopt;
    }
    const auto found = ids.find(token);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  try {
    return read_hub_tokens(tokenizer, file, id_in_model,
                           static_cast<std::int32_t>(vocabulary.size()))
        .added;
  } catch (const ConfigError&) {
    return {};
  }
}

/// Tokens of a Hugging Face tokenizer.json: the largest id + 1.
std::optional<int> count_tokenizer_json(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path named =
      std::filesystem::is_directory(path, error) ? path / "tokenizer.json" : path;
  const json file = read_json(named);
  if (!file.is_object()) return std::nullopt;
  const json none = json::object();
  const json model = file.value("model", none);
  const json vocabulary = model.is_object() ? model.value("vocab", none) : none;
  std::int64_t largest = -1;
  const auto see = [&](const json& id) {
    if (id.is_number_integer()) largest = std::max(largest, id.get<std::int64_t>());
  };
  if (vocabulary.is_object()) {
    for (const auto& entry : vocabulary.items()) see(entry.value());
  } else if (vocabulary.is_array()) {
    largest =
        static_cast<std::int64_t>(vocabulary.size()) - 1;  // of a Unigram model: ids are places
  }
  for (const AddedToken& token : added_tokens(file, vocabulary, named)) see(token.id);
  if (largest < 0 || largest >= std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(largest + 1);
}

std::optional<int> count_vocab_file(const std::string& path) {
  const json file = read_json(path);
  if (!file.is_object() || file.empty()) return std::nullopt;
  return static_cast<int>(file.size());
}

/// Pieces of a SentencePiece model: the records of its first field (ModelProto.pieces in
/// sentencepiece_model.proto). The library would read the whole model, and the configuration needs
/// no more than their number.
std::optional<int> count_sentencepiece(const std::string& path) {
  constexpr std::uint64_t kPieces = 1;
  if (!why_no_input_file(path).empty()) return std::nullopt;
  const std::string model = read_input_file(path);
  int pieces = 0;
  for (std::string_view rest = model; !rest.empty();) {
    const auto field = take_field(rest);
    if (!field) return std::nullopt;
    if (field->number == kPieces && field->is_bytes) ++pieces;
  }
  return pieces > 0 ? std::optional<int>(pieces) : std::nullopt;
}

bool is_sentencepiece(const TokenizerSection& tokenizer) {
  return tokenizer.library == "sentencepiece" ||
         (tokenizer.library == "megatron" && tokenizer.type == "GPTSentencePieceTokenizer");
}

/// The size of the tokenizer's vocabulary as far as its files tell.
std::optional<int> vocabulary_of(const TokenizerSection& tokenizer) {
  if (tokenizer.library == "byte-level") return kByteVocabularySize;
  if (tokenizer.library == "huggingface") return count_tokenizer_json(tokenizer.type);
  if (is_sentencepiece(tokenizer)) return count_sentencepiece(tokenizer.model);
  if (tokenizer.library != "megatron") return std::nullopt;
  const auto counted = count_vocab_file(tokenizer.vocab_file);
  return !counted && tokenizer.type == "GPT2BPETokenizer" ? kGpt2Vocabulary : counted;
}

/// The setting that names the tokenizer's files; an empty one is reported elsewhere.
std::string files_of(const TokenizerSection& tokenizer) {
  return is_sentencepiece(tokenizer) ? tokenizer.model : tokenizer.type;
}

/// Why the vocabulary is not known; "" when the tokenizer's section has its own problem.
std::string what_is_missing(const TokenizerSection* tokenizer) {
  if (tokenizer == nullptr)
    return "tokenized data does not state the size of the vocabulary; write it, or give "
           "model.model_config";
  const std::string files = files_of(*tokenizer);
  if (files.empty()) return "";
  return fmt::format(
      "the {} tokenizer {} does not state the size of its vocabulary; write it, or correct the "
      "tokenizer's path",
      tokenizer->library, files);
}

int unpadded_size(SectionReader& reader, const VocabularySources& sources, bool given) {
  const auto tokenizer =
      sources.tokenizer == nullptr ? std::nullopt : vocabulary_of(*sources.tokenizer);
  if (!given && !tokenizer) {
    const std::string missing = what_is_missing(sources.tokenizer);
    if (!missing.empty())
      reader.problem("vocab_size", "this key is required and missing: " + missing);
    return 1;
  }
  const int size = reader.positive("vocab_size", sources.from_json.value_or(tokenizer.value_or(1)));
  const int needed = tokenizer.value_or(0);
  if (reader.good({"vocab_size"}) && size < needed) {
    reader.problem(
        "vocab_size",
        fmt::format(
            "{} is smaller than the tokenizer's vocabulary; the {} tokenizer needs at least {}",
            size, sources.tokenizer->library, needed));
  }
  return size;
}

void read_vocabulary(SectionReader& reader, const VocabularySources& sources,
                     ModelSection& section) {
  const bool pads = !sources.hf || reader.has_value("make_vocab_size_divisible_by");
  section.make_vocab_size_divisible_by = reader.positive(
      "make_vocab_size_divisible_by", sources.hf ? 1 : section.make_vocab_size_divisible_by);
  const int divisor = section.make_vocab_size_divisible_by, tp = sources.tensor_model_parallel_size;
  const bool given = sources.from_json || reader.has_value("vocab_size");
  const int size = unpadded_size(reader, sources, given);
  section.vocab_size = size;
  const std::int64_t multiple =
      std::int64_t{divisor} * tp;  // Megatron's padding; data and models read vocab_size
  const std::int64_t padded = (size + multiple - 1) / multiple * multiple;
  if (padded == size || !reader.good({"vocab_size", "make_vocab_size_divisible_by"})) return;
  if (!pads && given) {
    return reader.problem(
        "vocab_size",
        fmt::format("{} is not divisible by tensor_model_parallel_size {}, and hf models are not "
                    "padded; nearest legal "
                    "values: {} or {}, or write make_vocab_size_divisible_by: 1 to pad it",
                    size, tp, std::max(multiple, padded - multiple), padded));
  }
  if (padded > std::numeric_limits<int>::max()) {
    return reader.problem("vocab_size",
                          fmt::format("{} padded to a multiple of make_vocab_size_divisible_by {} "
                                      "× TP {} = {} does not fit in 32 bits",
                                      size, divisor, tp, padded));
  }
  section.vocab_size = static_cast<int>(padded);
}

}  // namespace

void vocabulary_fields(Fields& fields, ModelSection& s, const VocabularySources& sources) {
  const bool tokens = !s.image;
  // NxDT takes the vocabulary from the tokenizer or from config.json.
  fields.own().form(
      "vocab_size",
      [&](SectionReader& r) {
        if (tokens) read_vocabulary(r, sources, s);
      },
      [&](YamlWriter& out) {
        if (tokens) out.integer("vocab_size", s.vocab_size);
      });
  fields.form(
      "make_vocab_size_divisible_by", [](SectionReader&) {},  // read with vocab_size
      [&](YamlWriter& out) {
        if (tokens) out.integer("make_vocab_size_divisible_by", s.make_vocab_size_divisible_by);
      });
}

}  // namespace trellis::trainer
