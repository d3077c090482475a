#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trellis::cli {

/// The request of `trellis checkpoint export-hf`.
struct HubExportRequest {
  std::string checkpoint = {}, out = {}, like = {}, tokenizer = {}, config_file = {}, dtype = {};
  std::vector<std::string> overrides = {};
  std::int64_t vocab_size = 0;              ///< 0: as the configuration pads it
  std::optional<double> max_shard_gb = {};  ///< none: as the index of `like`, or 5
  bool merge_adapters = false, json = false;
  bool verify = false;  ///< read it back
};

/// Writes the folder and prints. The exit code: 5 when what was read back is not what was written.
/// Throws ConfigError, OutputError.
[[nodiscard]] int export_hub(const HubExportRequest& request);

}  // namespace trellis::cli
