#include "cli/output/output_files.h"

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/output_error.h"

namespace trellis::cli {

OutputFiles::OutputFiles(const std::vector<std::pair<std::string, std::string>>& files) {
  Problems problems;
  for (const auto& [option, file] : files) {
    if (file.empty()) continue;
    try {
      const AtomicFile tried(file);
      files_.emplace(option, file);
    } catch (const ConfigError& error) {
      problems.add(option, error.what());
    }
  }
  problems.throw_if_any();
}

void OutputFiles::write(const std::string& option, const std::function<std::string()>& content) {
  const auto file = files_.find(option);
  if (file == files_.end()) return;
  try {
    write_file_atomically(file->second, content());
  } catch (const Error& error) {
    failures_ += (failures_.empty() ? "" : "\n") + option + ": " + error.what();
  }
}

void OutputFiles::finish() const {
  if (!failures_.empty()) throw OutputError(failures_);
}

void refuse_to_replace(const std::string& option, const std::string& file) {
  if (file.empty() || !std::filesystem::exists(file)) return;
  throw ConfigError(option + " " + file +
                    ": the file is there already: name another one, or replace it with --force");
}

}  // namespace trellis::cli
