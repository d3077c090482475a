#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"

namespace trellis::checkpoint::native {

/// Files of a checkpoint that are open at the same time: with xser there is one per tensor, more
/// than a process may open. Safe to call from several threads at once; a file is opened by one
/// while others that want it wait.
class OpenFiles {
 public:
  using Reader = std::shared_ptr<const TorchFileReader>;
  using File = std::shared_ptr<const ReadableFile>;
  /// `again`: it was open before. Called by several threads at once, for different files.
  using Open = std::function<File(const std::string& path, bool again)>;
  /// `classes` as TorchFileReader has it; `rule`: how its readers check what they read.
  OpenFiles(Open open, std::set<std::string> classes, RecordChecks::Rule rule)
      : open_(std::move(open)),
        classes_(std::move(classes)),
        checks_(std::make_shared<RecordChecks>(rule)) {}

  /// The torch file that `path` is or, with a length, an entry of it. Throws what opening throws.
  [[nodiscard]] Reader get(const std::string& path, std::int64_t entry_offset = 0,
                           std::int64_t entry_length = 0);
  [[nodiscard]] Reader get(const StoredTensor& tensor) {
    return get(tensor.file, tensor.entry_offset, tensor.entry_length);
  }

 private:
  struct Slot {
    std::mutex mutex;
    File file;
    Reader reader;  ///< of the entry that was asked for last
    std::int64_t entry_offset = 0;
    bool opened = false;
  };
  [[nodiscard]] std::shared_ptr<Slot> used(const std::string& path);

  Open open_;
  std::set<std::string> classes_;
  std::shared_ptr<RecordChecks> checks_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_;
  std::map<std::string, std::int64_t> last_use_;  ///< of those that may be open
  std::int64_t uses_ = 0;
};

}  // namespace trellis::checkpoint::native
