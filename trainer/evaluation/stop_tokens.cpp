#include "trainer/evaluation/stop_tokens.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "base/json/json_text.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

void add(StopTokens& tokens, std::int64_t id, const std::string& from) {
  if (!tokens.ids.insert(id).second) return;
  tokens.description += (tokens.description.empty() ? "" : ", ") + std::to_string(id) + " (" +
                        terminal_line(from) + ")";
}

/// One id or a list of them.
void add_all(StopTokens& tokens, const json& ids, const std::string& file) {
  const std::vector<json> list = ids.is_array() ? ids.get<std::vector<json>>() : std::vector{ids};
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0)
      throw ConfigError(file + ": eos_token_id: expected a token id or a list of them, got " +
                        terminal_line(ids.dump().substr(0, 80)));
    add(tokens, id.get<std::int64_t>(), file);
  }
}

void add_of_folder(StopTokens& tokens, const std::string& folder) {
  if (folder.empty()) return;
  const checkpoint::Place place = checkpoint::open_place(folder);
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!place.has(name)) continue;
    const std::string file = place.address() + "/" + name;
    const json document =
        parse_json(place.storage->read_text(checkpoint::join_path(place.path, name)), file,
                   "what transformers writes");
    const auto ids = document.is_object() ? document.find("eos_token_id") : document.end();
    if (document.is_object() && ids != document.end() && !ids->is_null())
      return add_all(tokens, *ids, file);
  }
}

}  // namespace

StopTokens stop_tokens(const RunConfig& config, const Tokenizer& tokenizer,
                       std::optional<std::int32_t> chat_end) {
  StopTokens tokens;
  if (const auto eos = tokenizer.eos_id()) add(tokens, *eos, "the tokenizer's");
  if (chat_end) add(tokens, *chat_end, "which ends the chats' answers");
  add_of_folder(tokens, config.exp_manager.checkpoints.resume_from_checkpoint);
  if (config.data.tokenizer.library == "huggingface")
    add_of_folder(tokens, config.data.tokenizer.type);
  return tokens;
}

}  // namespace trellis::trainer
