#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/import/imported_config.h"
#include "analysis/import/megatron_table.h"
#include "analysis/import/shell_words.h"

namespace trellis::analysis {

/// One argument of a command line that trains with Megatron-LM.
struct MegatronArgument {
  std::string name;  ///< without the dashes, with '-'
  SourceKey source;  ///< as it is written
  std::vector<std::string> values = {};
  std::string undetermined = {};     ///< as in ShellWord, of the name or of a value
  std::string assumed = {};          ///< as in ShellWord
  bool launches = false;             ///< in front of the script
  const MegatronRow* row = nullptr;  ///< null: no one knows it
  int replaced_in = 0;  ///< line of a later one of the same name, which counts; 0: none
};

/// All of them, in order, and what their values are.
class MegatronArguments {
 public:
  explicit MegatronArguments(std::vector<MegatronArgument> arguments);
  [[nodiscard]] const std::vector<MegatronArgument>& all() const { return arguments_; }
  /// True if the argument is given, whatever its value is.
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Its first value; "" when it is not given, not known or a flag.
  [[nodiscard]] std::string text(std::string_view name) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name) const;
  [[nodiscard]] std::optional<double> number(std::string_view name) const;
  /// `otherwise`: Megatron-LM's default; nullopt where the value is not known.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name,
                                                    std::int64_t otherwise) const;

 private:
  [[nodiscard]] const MegatronArgument* find(std::string_view name) const;
  std::vector<MegatronArgument> arguments_;
  std::map<std::string, std::size_t, std::less<>> last_;
};

/// The arguments of the one command of a script that runs a *.py that trains; of a text without
/// such a command, of the lines that begin with an argument; without those, of the variables that
/// hold arguments for another script. Throws ConfigError.
[[nodiscard]] MegatronArguments megatron_arguments(const ShellScript& script,
                                                   const std::string& file);

/// True if a flag has a value, or an argument of one value has several.
[[nodiscard]] bool has_wrong_count(const MegatronArgument& argument);
/// null: no one knows it. `name` without dashes.
[[nodiscard]] const MegatronRow* megatron_row(std::string_view name, bool launches);
/// Every known name, of arguments of the script.
[[nodiscard]] const std::vector<std::string>& megatron_names();

/// `text` as a scalar of YAML, quoted where it has to be.
[[nodiscard]] std::string yaml_scalar(const std::string& text);

}  // namespace trellis::analysis
