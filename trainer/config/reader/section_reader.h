#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// How a reader read a key: the two texts of the reference of keys.
struct KeyRead {
  std::string type;           ///< "integer ≥ 1", "one of single, cyclic"
  std::string default_value;  ///< as YAML; "required": there is none
};

/// Results of reading a configuration, in addition to its values.
struct Findings {
  Problems& problems;
  std::vector<UnsupportedFeature> unsupported = {};
  std::vector<std::string> warnings = {};
  std::vector<KeyWithoutEffect> without_effect = {};
  /// Not null: receives every key that is read, by its dotted path.
  std::map<std::string, KeyRead>* reads = nullptr;
};

/// Reads one section of a run's YAML against the table of known keys. Like YamlMap, reading never
/// throws: a value that is wrong is a problem, reads as the default and is remembered, so that no
/// later rule builds on it. A handle: copies share what they remember.
class SectionReader {
 public:
  /// `path`: dotted, "" for the top level.
  SectionReader(YamlMap map, std::string path, Findings& findings);
  [[nodiscard]] SectionReader section(const std::string& key);  ///< the same one each time

  template <typename T>
  std::optional<T> optional(const std::string& key);  ///< absent, null or wrong: nullopt
  template <typename T>
  T get(const std::string& key, T default_value) {
    note(key, std::optional<T>(default_value));
    return optional<T>(key).value_or(std::move(default_value));
  }
  template <typename T>
  T required(const std::string& key);  ///< absent or null: a problem
  /// One of `legal`; anything else gets the nearest name.
  std::string one_of(const std::string& key, const std::string& default_value,
                     const std::vector<std::string>& legal);
  int positive(const std::string& key, int default_value);
  int required_positive(const std::string& key);
  std::optional<int> optional_positive(const std::string& key);
  /// `value`, which `key` gave, or `most` and a problem when it is larger. `why`: what the limit is
  /// for.
  int at_most(const std::string& key, int value, int most, const std::string& why);
  double positive(const std::string& key, double default_value);
  int non_negative(const std::string& key, int default_value);
  std::int64_t non_negative(const std::string& key, std::int64_t default_value);
  double non_negative(const std::string& key, double default_value);
  double fraction(const std::string& key, double default_value);  ///< in [0, 1]

  [[nodiscard]] bool has(const std::string& key) const;
  [[nodiscard]] bool has_value(const std::string& key) const;  ///< present and not null
  [[nodiscard]] bool is_map(const std::string& key) const;
  [[nodiscard]] bool empty() const;
  [[nodiscard]] std::vector<std::string> keys() const;
  [[nodiscard]] std::string raw(
      const std::string& key) const;  ///< the scalar's text, "" when absent or no scalar
  [[nodiscard]] const YamlMap& map() const;
  [[nodiscard]] const std::string& path() const;
  /// True if a rule may use these keys: none of them had a problem.
  [[nodiscard]] bool good(std::initializer_list<const char*> keys) const;
  void problem(const std::string& key, const std::string& text);
  void warn(const std::string& key, const std::string& text);
  /// A legal wish that this version does not support.
  void unsupported(const std::string& key, const std::string& text, bool changes_step = true);

  /// Judges every key that the readers do not read, here and in nested sections: not supported,
  /// in the wrong section, misspelt, unknown.
  void finish();

 private:
  template <typename T>
  T at_least_zero(const std::string& key, T default_value);
  [[nodiscard]] std::string text_of(const std::string& key);
  [[nodiscard]] std::string dotted(const std::string& key) const;
  [[nodiscard]] bool is_switched_off(const std::string& key);
  void check_neutral(const std::string& key, std::string_view neutral, std::string_view why);
  void note_later(const std::string& key, std::string_view neutral, std::string_view why);
  void reject(const std::string& key, const std::vector<std::string>& known);

  /// Remembers how a key is read, for the reference of keys; the first reader of a key decides.
  /// `range`: follows the type. `default_value`: nullopt: null.
  template <typename T>
  void note(const std::string& key, const std::optional<T>& default_value,
            const std::string& range = "");
  void note_read(const std::string& key, KeyRead read);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trellis::trainer
