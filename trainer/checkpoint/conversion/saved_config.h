#pragma once

#include <string>
#include <vector>

#include "trainer/checkpoint/formats/tensor_source.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// The configuration file of a conversion: a named one, or that which a checkpoint was saved with,
/// as a file for as long as this lives.
class ConfigFile {
 public:
  /// `file` "": the source's. Throws ConfigError when the source has none.
  ConfigFile(const TensorSource& source, std::string file);
  ~ConfigFile();
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_temporary_ = false;
};

}  // namespace trellis::checkpoint
