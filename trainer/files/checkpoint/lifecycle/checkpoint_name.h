#pragma once

#include <map>
#include <string>

namespace trellis::checkpoint {

/// Numbers that a checkpoint's name may hold. `step` and `epoch` are whole numbers, all others
/// floats, as in Lightning.
using NameMetrics = std::map<std::string, double>;

/// Lightning's format_checkpoint_name: {name} and {name:format} become the number, with `name=` in
/// front when `insert_names`; a number that is not there is nan (in Lightning it is 0).
/// "m--{step}-{consumed_samples}" gives "m--step=5-consumed_samples=160.0". Formats: d, .Nf, .Ne,
/// .Ng, with a width and leading zeros. Throws ConfigError for another format, an unclosed brace,
/// or a result that is no file name.
[[nodiscard]] std::string checkpoint_name(const std::string& pattern, const NameMetrics& metrics,
                                          bool insert_names);

inline constexpr const char* kCheckpointSuffix = ".ckpt";
inline constexpr const char* kLastSuffix = "-last";

}  // namespace trellis::checkpoint
