#include "trainer/files/data/tokenizers/vocabulary.h"

#include <algorithm>

namespace trellis::trainer {

Vocabulary::Vocabulary(const JsonReader& json) {
  if (!json.value().is_object()) json.wrong("an object {\"token\": id, …}");
  if (json.value().empty()) json.wrong("a vocabulary that is not empty");
  std::int32_t largest = 0;
  for (const auto& entry : json.value().items()) {
    const std::int32_t id = JsonReader(entry.value(), json.where() + "." + entry.key()).id();
    ids_.emplace(entry.key(), id);
    largest = std::max(largest, id);
  }
  if (static_cast<std::size_t>(largest) > 16 * ids_.size() + (1 << 16))
    json.wrong("ids without large gaps");
  tokens_.resize(static_cast<std::size_t>(largest) + 1);
  for (const auto& [token, id] : ids_) {
    std::string& place = tokens_[static_cast<std::size_t>(id)];
    if (!place.empty())
      throw ConfigError(json.where() + ": tokens \"" + std::min(place, token) + "\" and \"" +
                        std::max(place, token) + "\" have one id, " + std::to_string(id));
    place = token;
  }
}

void Vocabulary::append(const std::string& token) {
  ids_[token] = size();
  tokens_.push_back(token);
}

}  // namespace trellis::trainer
