#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/yaml.h"

namespace trellis::trainer {

/// Writes "key: value" lines. Texts are double-quoted, so that no content of theirs is taken for
/// YAML.
class YamlWriter {
 public:
  void open(std::string_view section);
  void close();

  void text(std::string_view key, std::string_view value);
  void text_or_null(std::string_view key, std::string_view value);  ///< "" as null
  void boolean(std::string_view key, bool value);
  void integer(std::string_view key, std::int64_t value);
  void number(std::string_view key, double value);  ///< the shortest text that reads back equal
  void number_or_null(std::string_view key, const std::optional<double>& value);
  void integer_or_null(std::string_view key, const std::optional<std::int64_t>& value);
  void texts(std::string_view key, const std::vector<std::string>& values);  ///< empty: null
  void raw(std::string_view key, std::string_view value);
  /// The keys of `source` that belong to section `path`, but to no field of RunConfig: as they
  /// are there.
  void keep(const YamlMap& source, std::string_view path);

  [[nodiscard]] static std::string quoted(std::string_view value);
  [[nodiscard]] const std::string& result() const { return text_; }

 private:
  std::string text_;
  std::string indent_;
};

}  // namespace trellis::trainer
