#pragma once

#include <filesystem>

namespace trellis {

/// While it lives, the file at `path` is under way: a signal that ends the process removes it.
class PartialFile {
 public:
  explicit PartialFile(const std::filesystem::path& path);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

 private:
  int slot_;  ///< −1: there are too many, or its name is too long
};

/// While it lives, SIGINT, SIGTERM and SIGHUP remove the partial files before they do what they did
/// before: end the process. One that is ignored, as nohup does, stays ignored. Signals belong to
/// the process: one at a time in a library.
class RemovesPartialFiles {
 public:
  RemovesPartialFiles();
  ~RemovesPartialFiles();
  RemovesPartialFiles(const RemovesPartialFiles&) = delete;
  RemovesPartialFiles& operator=(const RemovesPartialFiles&) = delete;
};

}  // namespace trellis
