#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/yaml/yaml.h"
#include "sim/config/default_instance.h"
#include "trainer/config/run_config.h"
#include "trainer/config/run_source.h"

/// Reads a YAML and validates it as a run.
namespace trellis::trainer {

struct KeyRead;

/// Result of reading and checking a file.
struct RunCheck {
  RunConfig config;                   ///< meaningful when there are no problems
  std::vector<std::string> problems;  ///< "file:line:key: rule, numbers, what to do"
  std::vector<std::string> warnings;  ///< legal, but surprising; the same form
  std::vector<KeyWithoutEffect> without_effect;
};

/// A verb may change these settings of a file. RunConfig::resolved_yaml has them as they are run.
struct VerbChanges {
  std::int64_t steps = 0;  ///< trainer.max_steps; 0: the file's. A schedule without a length of
                           ///< its own keeps the one that it has in the file
  bool without_progress = false;  ///< trainer.enable_progress_bar off
};

/// Reads and validates an NxDT YAML in one pass. `overrides`: "key.path=value". As NxDT's launcher
/// does, COMPILE=1 in the environment makes a dry run of 10 steps without outputs, and TRAIN_ITERS
/// replaces trainer.max_steps. Throws ConfigError when the file is no YAML. `instance`: of whose
/// nodes `trainer.devices: auto` takes every logical core.
[[nodiscard]] RunCheck check_run_config(const std::string& file,
                                        const std::vector<std::string>& overrides,
                                        const std::string& instance = sim::kTrainingInstance,
                                        const VerbChanges& changes = {});
/// The same for a run: throws one ConfigError with every problem, logs the warnings.
[[nodiscard]] RunConfig load_run_config(const std::string& file,
                                        const std::vector<std::string>& overrides,
                                        const std::string& instance = sim::kTrainingInstance,
                                        const VerbChanges& changes = {});
/// Throws a ConfigError that lists the features which this version validates but does not
/// support. `simulate`: only those that change a step.
void refuse_unsupported(const RunConfig& config, bool simulate);
[[nodiscard]] RunConfig load_run_config(const RunSource& source, const VerbChanges& changes = {});

/// A configuration that is checked many times with other overrides, as the candidates of a sweep
/// are: its file is read and parsed once. Several threads may use it.
class RunConfigFile {
 public:
  explicit RunConfigFile(std::string file);
  /// The result of check_run_config, but without config.resolved_yaml, which takes as long as all
  /// the rest.
  [[nodiscard]] RunCheck check(const std::vector<std::string>& overrides,
                               const std::string& instance = sim::kTrainingInstance) const;
  /// The configuration of such a check. Throws ConfigError as load_run_config().
  [[nodiscard]] RunConfig load(const std::vector<std::string>& overrides,
                               const std::string& instance, const VerbChanges& changes = {}) const;

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

/// How the sections' readers read the configuration `text`, by dotted key. Problems of its values
/// are ignored. Throws ConfigError when it is no YAML.
[[nodiscard]] std::map<std::string, KeyRead> read_keys_of(const std::string& text);

}  // namespace trellis::trainer
