#include "cli/verbs/checkpoint_tokens.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/log.h"
#include "trainer/files/data/chat/end_of_turn.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::hugging_face::TokenIds;
using nlohmann::json;

trainer::TokenizerSection section_of(const std::string& folder) {
  trainer::TokenizerSection section;
  const bool pieces = !why_no_input_file(fs::path(folder) / "tokenizer.json").empty() &&
                      why_no_input_file(fs::path(folder) / "tokenizer.model").empty();
  section.library = pieces ? "sentencepiece" : "huggingface";
  section.type = folder;
  if (pieces) section.model = (fs::path(folder) / "tokenizer.model").string();
  return section;
}

void add(TokenIds& ids, std::int64_t id) {
  if (std::ranges::find(ids.eos, id) == ids.eos.end()) ids.eos.push_back(id);
}

void add_of_generation_config(const std::string& folder, TokenIds& ids) {
  const fs::path file = fs::path(folder) / "generation_config.json";
  if (!why_no_input_file(file).empty()) return;
  const json document = json::parse(read_input_file(file), nullptr, /*allow_exceptions=*/false);
  const json eos = document.is_object() ? document.value("eos_token_id", json()) : json();
  for (const json& id : eos.is_array() ? eos : json::array({eos}))
    if (id.is_number_integer()) add(ids, id.get<std::int64_t>());
}

void add_of_chats(const std::string& folder, trainer::Tokenizer& tokenizer, TokenIds& ids) {
  try {
    const trainer::ChatTemplate chat_template(folder);
    if (const auto id = trainer::end_of_turn(chat_template, tokenizer)) add(ids, *id);
  } catch (const ConfigError&) {  // there is no template, or nothing that renders it
  }
}

}  // namespace

TokenIds exported_tokens(const std::string& folder, const trainer::DataSection& data) {
  const trainer::TokenizerSection used = folder.empty() ? data.tokenizer : section_of(folder);
  TokenIds ids;
  std::string why = "the tokenizer names none";
  try {
    // Bytes are also what a training of rows or of Megatron's files says that names no tokenizer.
    const bool reads_text =
        data.kind == trainer::DataKind::kText || data.kind == trainer::DataKind::kAlignment;
    if (folder.empty() && !reads_text && used.library == "byte-level")
      throw ConfigError("the training read tokens, and names no tokenizer");
    const auto tokenizer = trainer::make_tokenizer(used);
    ids.bos = tokenizer->bos_id();
    ids.pad = tokenizer->pad_id();
    if (const auto eos = tokenizer->eos_id()) add(ids, *eos);
    if (used.library == "huggingface") {
      add_of_generation_config(used.type, ids);
      add_of_chats(used.type, *tokenizer, ids);
    }
  } catch (const ConfigError& error) {
    why = error.what();
  }
  if (ids.eos.empty())
    log_warning(
        "config.json and generation_config.json name no end-of-sequence token, so that "
        "`generate` ends with its longest answer: " +
        why + "; name the tokenizer's folder in --tokenizer");
  return ids;
}

}  // namespace trellis::cli
