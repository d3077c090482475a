#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/export/exported_config.h"
#include "analysis/export/resolved_settings.h"

namespace trellis::analysis {

/// How the keys of one other program are judged.
struct Counterparts {
  std::string program;  ///< "Megatron-LM"
  /// True if the other program has a name for this key: it has an importer's row.
  std::function<bool(std::string_view key)> has;
  /// Why a key has none; "": for no special reason.
  std::function<std::string(std::string_view key)> why;
  /// Keys that the form of the result decides: not listed. "model.*": all of a section.
  std::vector<std::string_view> form;
  /// Keys without counterpart, although what is imported again decides them.
  std::vector<std::string_view> none = {"name", "exp_manager.name"};
};

/// Imports again what was written for another program: a key comes back when the other program has
/// a name for it and the imported value is the one before. All others are left out, each with the
/// reason: keys of the file first, then those that defaults or a model's config.json decide
/// differently.
[[nodiscard]] std::vector<LeftOut> left_out(const ResolvedSettings& before,
                                            const ImportedConfig& again,
                                            const Counterparts& counterparts);

}  // namespace trellis::analysis
