#include "trainer/checkpoint/conversion/saved_config.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "trainer/checkpoint/formats/native/file_names.h"
#include "trainer/checkpoint/formats/native/native_source.h"

namespace trellis::checkpoint {
namespace {

std::string saved_text(const TensorSource& source) {
  const auto* training = dynamic_cast<const native::NativeSource*>(&source);
  if (training == nullptr)
    throw ConfigError(source.address() + ": a checkpoint of the format " + source.format() +
                      " has no configuration of a training; name one with --config");
  try {
    return training->user_content().at("hyper_parameters").at("cfg").as_string();
  } catch (const ConfigError& error) {
    throw ConfigError(source.address() + "/" + native::kUserContentFile + ": " + error.what() +
                      "; name the configuration with --config");
  }
}

}  // namespace

ConfigFile::ConfigFile(const TensorSource& source, std::string file) : path_(std::move(file)) {
  if (!path_.empty()) return;
  const std::string text = saved_text(source);
  path_ = (std::filesystem::temp_directory_path() / "trellis_config_XXXXXX").string();
  const int descriptor = mkstemp(path_.data());
  if (descriptor < 0) throw Error(ExitCode::kOutput, path_ + ": cannot be written");
  close(descriptor);
  is_temporary_ = true;
  write_file_atomically(path_, text);
}

ConfigFile::~ConfigFile() {
  std::error_code ignored;
  if (is_temporary_) std::filesystem::remove(path_, ignored);
}

}  // namespace trellis::checkpoint
