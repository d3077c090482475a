#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

/// Most parameters of one generation that may be fitted: more knobs fit the rows and not the
/// machine.
inline constexpr std::size_t kMaxFitted = 8;

/// Where the files of fitted parameters lie: calibration/ next to the hardware files; empty when
/// there is none.
[[nodiscard]] std::filesystem::path calibration_directory();

/// Replacements for numbers of a hardware file: the fitted ones of
/// sim/config/calibration/<generation>.yaml and <software stack>.yaml, then the user's `key=value`.
/// A key that no reader asks for is a problem, as is a file with more than kMaxFitted parameters.
class Overlay {
 public:
  /// Throws ConfigError for a file that does not parse and for an override without "=".
  Overlay(const std::string& generation, const LoadOptions& options);

  /// The numbers that instruction traces gave, by key: they hold when `replace`, except for what
  /// the user sets.
  void read_traces(const YamlMap& section, bool replace);

  struct Replacement {
    YamlMap entry;  ///< `value` in it is read like any other
    Parameter described;
  };
  /// The last replacement of `key`; nullptr: the hardware file's number holds.
  [[nodiscard]] const Replacement* find(const std::string& key);
  /// Throws ConfigError with all problems: unknown keys, missing fields, values outside their
  /// range's dimension.
  void throw_if_any() const;

 private:
  /// `kind`: the key under which the file says of what it is.
  void read_fitted(const std::filesystem::path& file, const std::string& kind);
  void read_override(const std::string& text);

  std::vector<YamlDocument> documents_;
  std::map<std::string, Replacement> replacements_;
  std::map<std::string, bool> asked_;
};

}  // namespace trellis::sim
