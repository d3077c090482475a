#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/import/imported_config.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

/// A configuration of this program as an exporter reads it: what the file says, and every setting
/// with what defaults, interpolation and a model's config.json make of it.
class ResolvedSettings {
 public:
  /// Throws ConfigError (file:line) for a file that `trellis validate` refuses.
  static ResolvedSettings of_file(const std::string& file,
                                  const std::vector<std::string>& overrides);
  /// Resolves settings that were imported; nullopt when they are no legal configuration.
  static std::optional<ResolvedSettings> of_settings(const std::vector<Setting>& settings);

  [[nodiscard]] const trainer::RunConfig& config() const { return config_; }
  /// Keys of the file, in its order.
  [[nodiscard]] const std::vector<SourceKey>& given() const { return given_; }
  /// Resolved, and in the order of the resolved file.
  [[nodiscard]] const std::vector<SourceKey>& all() const { return all_; }

  /// The resolved value as YAML; "" when there is none. `key`: also an older name of a key.
  [[nodiscard]] std::string yaml(std::string_view key) const;
  /// Without quotes; "" also for null.
  [[nodiscard]] std::string text(std::string_view key) const;
  [[nodiscard]] bool is(std::string_view key, std::string_view value) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> list(std::string_view key) const;  ///< elements()
  /// The value that the file gives, without quotes; "" when it has no such key, or null.
  [[nodiscard]] std::string as_given(std::string_view key) const;

 private:
  void index();
  trainer::RunConfig config_;
  std::vector<SourceKey> given_, all_;
  std::map<std::string, std::string, std::less<>> values_, given_values_;
};

/// Where a key is in the resolved file, by its name or by an older one.
[[nodiscard]] std::string resolved_name(std::string_view key);
/// Elements of a list of YAML; a scalar is one; null: none.
[[nodiscard]] std::vector<std::string> elements(const std::string& yaml);
/// A YAML scalar without its quotes; "" for null.
[[nodiscard]] std::string scalar_text(const std::string& yaml);

}  // namespace trellis::analysis
