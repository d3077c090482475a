#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "base/yaml/yaml.h"
#include "sim/config/overlay.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

/// Reads the `{value, source, evidence, range}` entries of one mapping of a hardware file and
/// remembers each as a Parameter. Entries that break the rules become problems of the document.
class ParameterReader {
 public:
  /// `prefix`: dotted key of the mapping, for the parameters' keys. `out` and `overlay` may be
  /// null: check only.
  ParameterReader(YamlMap map, std::string prefix, std::vector<Parameter>* out,
                  Overlay* overlay = nullptr)
      : map_(std::move(map)), prefix_(std::move(prefix)), out_(out), overlay_(overlay) {}

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
    Parameter written = describe(key, entry);
    const Overlay::Replacement* replaced =
        overlay_ == nullptr ? nullptr : overlay_->find(written.key);
    if (replaced == nullptr) return remember(std::move(written)), value;
    const T fitted = replaced->entry.get<T>("value", value);
    if constexpr (!std::is_same_v<T, bool>) {
      check_replacement(replaced->entry, {static_cast<double>(number(value)), written.value},
                        static_cast<double>(number(fitted)), std::is_same_v<T, Picoseconds>);
    }
    remember(merge(std::move(written), replaced->described));
    return fitted;
  }
  /// As read, but the key may be absent.
  template <typename T>
  T read_or(const std::string& key, T default_value) {
    return map_.has(key) ? read<T>(key) : default_value;
  }

  /// A number of a mechanism that most machines have none of: absent, `none`, unless it is
  /// replaced.
  template <typename T>
  T read_new(const std::string& key, T none) {
    if (map_.has(key)) return read<T>(key);
    const Overlay::Replacement* replaced =
        overlay_ == nullptr ? nullptr : overlay_->find(prefix_ + key);
    if (replaced == nullptr) return none;
    const T value = replaced->entry.get<T>("value", none);
    check_positive(replaced->entry, static_cast<double>(number(value)));
    if constexpr (std::is_same_v<T, Picoseconds> || std::is_same_v<T, double>) {
      check_replacement(replaced->entry, {static_cast<double>(number(none)), "number"},
                        static_cast<double>(number(value)), std::is_same_v<T, Picoseconds>);
    }
    remember(replaced->described);
    return value;
  }

  [[nodiscard]] ParameterReader section(const std::string& key) {
    if (!map_.has(key)) map_.problem(key, "is missing: expected a mapping");
    return {map_.map(key), prefix_ + key + ".", out_, overlay_};
  }
  void reject_unknown() const { map_.reject_unknown(); }

 private:
  template <typename T>
  static auto number(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return 0;
    } else {
      return value.value;
    }
  }
  struct Written {
    double value;
    const std::string& text;
  };
  static void check_positive(const YamlMap& entry, double value);
  /// A replacement stays near the hardware file's number: far from it nothing is a machine, and
  /// times leave the range of integer picoseconds.
  static void check_replacement(const YamlMap& entry, const Written& written, double value,
                                bool is_time);
  /// The entry as written; its broken rules become problems.
  [[nodiscard]] Parameter describe(const std::string& key, const YamlMap& entry) const;
  /// The replacement, which still shows what it replaced.
  [[nodiscard]] static Parameter merge(Parameter written, Parameter replacement);
  void remember(Parameter parameter);

  YamlMap map_;
  std::string prefix_;
  std::vector<Parameter>* out_;
  Overlay* overlay_;
};

}  // namespace trellis::sim
