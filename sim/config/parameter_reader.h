#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "base/yaml.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

/// Reads the `{value, source, evidence, range}` entries of one mapping of a hardware file and remembers each as a Parameter.
/// Entries that break the rules become problems of the document.
class ParameterReader {
 public:
  /// `prefix`: dotted key of the mapping, for the parameters' keys. `out` may be null: check only.
  ParameterReader(YamlMap map, std::string prefix, std::vector<Parameter>* out) : map_(std::move(map)), prefix_(std::move(prefix)), out_(out) {}

  template <typename T>
  T read(const std::string& key) {
    const YamlMap entry = map_.map(key);
    if (!map_.has(key)) {
      map_.problem(key, "is missing: expected {value: …, source: …, evidence: …}");
      return T{};
    }
    if (!map_.is_map(key)) return T{};  // the reader has already said that a mapping is expected
    const T value = entry.required<T>("value");
    check_positive(entry, static_cast<double>(number(value)));
    remember(key, entry);
    return value;
  }
  /// As read, but the key may be absent.
  template <typename T>
  T read_or(const std::string& key, T default_value) {
    return map_.has(key) ? read<T>(key) : default_value;
  }

  [[nodiscard]] ParameterReader section(const std::string& key) {
    if (!map_.has(key)) map_.problem(key, "is missing: expected a mapping");
    return {map_.map(key), prefix_ + key + ".", out_};
  }
  void reject_unknown() const { map_.reject_unknown(); }

 private:
  template <typename T>
  static auto number(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else {
      return value.value;
    }
  }
  static void check_positive(const YamlMap& entry, double value);
  void remember(const std::string& key, const YamlMap& entry);

  YamlMap map_;
  std::string prefix_;
  std::vector<Parameter>* out_;
};

}  // namespace trellis::sim
