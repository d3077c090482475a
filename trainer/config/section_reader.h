#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml.h"

namespace trellis::trainer {

/// Reads one section of a run's YAML against the table of known keys. Like YamlMap, reading never throws: a value that is wrong is a
/// problem, reads as the default and is remembered, so that no later rule builds on it. A handle: copies share what they remember.
class SectionReader {
 public:
  /// `path`: dotted, "" for the top level.
  SectionReader(YamlMap map, std::string path, Problems& problems);
  [[nodiscard]] SectionReader section(const std::string& key);  ///< the same one each time

  template <typename T>
  std::optional<T> optional(const std::string& key);  ///< absent, null or wrong: nullopt
  template <typename T>
  T get(const std::string& key, T default_value) {
    return optional<T>(key).value_or(std::move(default_value));
  }
  template <typename T>
  T required(const std::string& key);  ///< absent or null: a problem
  /// One of `legal`; a name of `not_carried_out` is named as such, anything else gets the nearest name.
  std::string one_of(const std::string& key, const std::string& default_value, const std::vector<std::string>& legal,
                     const std::vector<std::string>& not_carried_out);
  int positive(const std::string& key, int default_value);
  int required_positive(const std::string& key);
  std::optional<int> optional_positive(const std::string& key);
  std::int64_t non_negative(const std::string& key, std::int64_t default_value);
  double non_negative(const std::string& key, double default_value);

  [[nodiscard]] bool has(const std::string& key) const;
  [[nodiscard]] bool empty() const;
  /// Whether a rule may build on these keys: none of them had a problem.
  [[nodiscard]] bool good(std::initializer_list<const char*> keys) const;
  void problem(const std::string& key, const std::string& text);

  /// Judges every key that the readers do not read, here and in nested sections: not carried out, in the wrong section, misspelt,
  /// unknown. `megatron`: an absent key means NxDT's default, which for some keys is not carried out.
  void finish(bool megatron);

 private:
  [[nodiscard]] std::string text_of(const std::string& key);
  void check_neutral(const std::string& key, std::string_view neutral);
  void check_default(const std::string& key, std::string_view neutral, std::string_view nxdt_default);
  void reject(const std::string& key, const std::vector<std::string>& known);

  struct State;
  std::shared_ptr<State> state_;
};

/// "a, b or c"
[[nodiscard]] std::string join_names(const std::vector<std::string>& names);

}  // namespace trellis::trainer
