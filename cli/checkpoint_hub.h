#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trellis::cli {

/// What `trellis checkpoint export-hf` was asked for.
struct HubExportRequest {
  std::string checkpoint = {}, out = {}, like = {}, tokenizer = {}, config_file = {}, dtype = {};
  std::vector<std::string> overrides = {};
  std::int64_t vocab_size = 0;  ///< 0: as the configuration pads it
  double max_shard_gb = 5;
  bool merge_adapters = false, json = false;
};

/// Writes the folder and prints. Throws ConfigError, OutputError.
void export_hub(const HubExportRequest& request);

}  // namespace trellis::cli
