#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trellis::cli {

/// The files that a verb writes next to standard output: all are tried before the work starts, and
/// one that fails afterwards does not discard the others.
class OutputFiles {
 public:
  /// `files`: option and name; an empty name is an output that is not asked for. Opens every file
  /// once and leaves no files. Throws ConfigError with every place that cannot be written.
  explicit OutputFiles(const std::vector<std::pair<std::string, std::string>>& files);

  /// Writes what `content` returns into the file of `option`, when it was asked for. An Error of
  /// either is kept for finish().
  void write(const std::string& option, const std::function<std::string()>& content);
  /// Throws one OutputError with all that failed, when something did.
  void finish() const;

 private:
  std::map<std::string, std::filesystem::path> files_;
  std::string failures_;
};

/// Throws ConfigError when `file` is there already, which --force of the verb allows. "": nothing.
void refuse_to_replace(const std::string& option, const std::string& file);

}  // namespace trellis::cli
