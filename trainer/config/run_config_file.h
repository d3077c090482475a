#pragma once

#include <string>
#include <vector>

#include "base/yaml/yaml.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// A configuration that is checked many times with other overrides, as the candidates of a sweep
/// are: its file is read and parsed once. Several threads may use it.
class RunConfigFile {
 public:
  explicit RunConfigFile(std::string file);
  /// What check_run_config gives, but without config.resolved_yaml, which takes as long as all the
  /// rest.
  [[nodiscard]] RunCheck check(const std::vector<std::string>& overrides,
                               const std::string& instance = kDefaultInstance) const;
  /// The configuration of such a check. Throws ConfigError as load_run_config().
  [[nodiscard]] RunConfig load(const std::vector<std::string>& overrides,
                               const std::string& instance) const;

 private:
  std::string file_;
  YamlSource source_;
};

/// check_run_config of a file that is not written yet: `file` is where it will be. Without
/// config.resolved_yaml.
[[nodiscard]] RunCheck check_run_config_text(const std::string& text, const std::string& file);

/// A configuration that a run of this program left, in its whole: no environment, no adapters of a
/// folder that may have changed since.
[[nodiscard]] RunCheck check_saved_run_config(const std::string& text, const std::string& file);

}  // namespace trellis::trainer
