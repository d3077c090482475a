#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

namespace trellis::checkpoint {

/// One change that a Storage is about to make.
struct FaultPoint {
  enum class Kind { kMakeDirectory, kWrite, kSync, kRename, kUpload, kDelete };
  std::int64_t number = 0;  ///< 1, 2, … per Storage
  Kind kind = Kind::kWrite;
  std::string path;  ///< relative to the storage's root; of a rename the final one
};
[[nodiscard]] const char* name(FaultPoint::Kind kind);

/// A hook throws it to act as the end of the process: from then on the Storage changes nothing, not
/// even to clean up, and each further change throws it again.
class StorageStopped : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the storage was stopped"; }
};

/// The changes of a Storage, numbered, and what a test does before each. A hook may throw an error,
/// which then is the failure of that change, may throw StorageStopped, or may end the process.
/// Without a hook a point costs two atomic loads.
class FaultPoints {
 public:
  using Hook = std::function<void(const FaultPoint&)>;
  /// Starts the numbers at 1 again and ends a stop. REQUIRES: no change is under way.
  void set_hook(Hook hook);
  /// Called by a Storage before each change; the hook is called by one thread at a time.
  void reach(FaultPoint::Kind kind, const std::string& path);
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  std::mutex mutex_;
  Hook hook_;
  std::atomic<bool> hooked_ = false;
  std::atomic<bool> stopped_ = false;
  std::int64_t reached_ = 0;
};

}  // namespace trellis::checkpoint
