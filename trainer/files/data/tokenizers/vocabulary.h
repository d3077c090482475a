#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/files/data/tokenizers/json_reader.h"

namespace trellis::trainer {

/// Tokens ↔ ids.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// {"token": id, …}. Throws ConfigError: empty, an id that is none, occurs twice or lies far
  /// beyond the number of tokens.
  explicit Vocabulary(const JsonReader& json);
  /// `token` gets the next id; the last one counts when a token occurs twice.
  void append(const std::string& token);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  [[nodiscard]] const std::string& token(std::int32_t id) const {
    return tokens_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::optional<std::int32_t> id_of(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::string> tokens_;
};

}  // namespace trellis::trainer
