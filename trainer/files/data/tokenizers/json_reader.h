#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace trellis::trainer {

/// A value of a JSON file with its place, for errors: "tokenizer.json: model.merges: expected a
/// list, got object".
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] const nlohmann::json& value() const { return *value_; }
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }
  [[nodiscard]] std::string where() const { return path_.empty() ? file_ : file_ + ": " + path_; }

  /// A member; null when it is absent.
  [[nodiscard]] JsonReader operator[](const std::string& key) const {
    if (!value_->is_object()) wrong("an object");
    static const nlohmann::json kNull;
    const auto found = value_->find(key);
    return {found == value_->end() ? kNull : *found, file_,
            path_.empty() ? key : path_ + "." + key};
  }
  [[nodiscard]] std::vector<JsonReader> elements() const {
    if (!value_->is_array()) wrong("a list");
    std::vector<JsonReader> elements;
    for (std::size_t i = 0; i < value_->size(); ++i)
      elements.emplace_back((*value_)[i], file_, path_ + "[" + std::to_string(i) + "]");
    return elements;
  }
  [[nodiscard]] const std::string& text() const {
    if (!value_->is_string()) wrong("a text");
    return value_->get_ref<const std::string&>();
  }
  [[nodiscard]] std::string text_or(const std::string& otherwise) const {
    return is_null() ? otherwise : text();
  }
  [[nodiscard]] bool flag(bool otherwise) const {
    if (is_null()) return otherwise;
    if (!value_->is_boolean()) wrong("true or false");
    return value_->get<bool>();
  }
  /// An id of a token.
  [[nodiscard]] std::int32_t id() const {
    constexpr std::int64_t kMost = 1 << 28;
    if (!value_->is_number_integer() || value_->get<std::int64_t>() < 0 ||
        value_->get<std::int64_t>() > kMost)
      wrong("a token id, 0 … " + std::to_string(kMost));
    return value_->get<std::int32_t>();
  }
  [[noreturn]] void wrong(const std::string& expected) const {
    std::string got = value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (got.size() > 60) got = got.substr(0, 60) + "…";
    throw ConfigError(where() + ": expected " + expected + ", got " + got);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw ConfigError(where() + ": " + what + " is not supported by this version");
  }

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

/// Parses a file. Throws ConfigError when it is missing or no JSON.
[[nodiscard]] nlohmann::json read_json_file(const std::string& file);

}  // namespace trellis::trainer
