#include "trainer/files/checkpoint/conversion/saved_config.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/address.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/files/checkpoint/conversion/model_check.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"

namespace trellis::checkpoint {
namespace {

std::string saved_text(const TensorSource& source) {
  const auto* training = dynamic_cast<const native::NativeSource*>(&source);
  if (training == nullptr || !training->is_ours())
    throw ConfigError(source.address() + ": a checkpoint of the format " + source.format() +
                      " has no configuration of a training; name one with --config");
  try {
    return training->user_content().at("hyper_parameters").at("cfg").as_string();
  } catch (const ConfigError& error) {
    throw ConfigError(source.address() + "/" + native::kUserContentFile + ": " + error.what() +
                      "; name the configuration with --config");
  }
}

/// Exists for as long as this lives.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() / "trellis_config_XXXXXX").string()) {
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0) throw Error(ExitCode::kOutput, path_ + ": cannot be written");
    close(descriptor);
    write_file_atomically(path_, text);
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
  return text;
}

}  // namespace

trainer::RunConfig config_of(const TensorSource& source, const std::string& file,
                             const std::vector<std::string>& overrides,
                             const std::string& instance) {
  if (!file.empty()) return trainer::load_run_config(file, overrides, instance);
  const TemporaryFile saved(without_keys(saved_text(source)));  // older programs saved them
  const std::string name = source.address() + "'s configuration";
  try {
    trainer::RunConfig config = trainer::load_run_config(saved.path(), overrides, instance);
    for (auto& [key, where] : config.places.where) where = replaced(where, saved.path(), name);
    return config;
  } catch (const ConfigError& error) {
    throw ConfigError(replaced(error.what(), saved.path(), name));
  }
}

bool has_configuration(const TensorSource& source) {
  const auto* training = dynamic_cast<const native::NativeSource*>(&source);
  return training != nullptr && training->is_ours() &&
         !saved_configuration(training->user_content()).empty();
}

trainer::RunConfig checked_config_of(const TensorSource& source, const std::string& file,
                                     const std::vector<std::string>& overrides) {
  trainer::RunConfig config = config_of(source, file, overrides);
  check_saved_model(source, config, std::nullopt);
  return config;
}

}  // namespace trellis::checkpoint
