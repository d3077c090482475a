#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "trainer/checkpoint/containers/torch_file.h"

namespace trellis::checkpoint::native {

/// Files of a checkpoint that are open at the same time: with xser there is one per tensor, more
/// than a process may open. Safe to call from several threads at once; a file is opened by one
/// while others that want it wait.
class OpenFiles {
 public:
  using Reader = std::shared_ptr<const TorchFileReader>;
  /// `again`: it was open before. Called by several threads at once, for different files.
  using Open = std::function<Reader(const std::string& path, bool again)>;
  explicit OpenFiles(Open open) : open_(std::move(open)) {}

  /// Throws what opening throws.
  [[nodiscard]] Reader get(const std::string& path);

 private:
  struct Slot {
    std::mutex mutex;
    Reader reader;
    bool opened = false;
  };
  [[nodiscard]] std::shared_ptr<Slot> used(const std::string& path);

  Open open_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_;
  std::map<std::string, std::int64_t> last_use_;  ///< of those that may be open
  std::int64_t uses_ = 0;
};

}  // namespace trellis::checkpoint::native
