#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

/// One run at a time saves into a folder of a place without locks, such as S3. Arrow gives no
/// conditional requests, so each run writes a separate object below kFolder and lists them after:
/// where lists show all that was written before (S3 does, since December 2020), of two that begin
/// at once each sees the other, and both are refused. A run renews its object; one that is not
/// renewed is of a process that has ended. No clock is compared with another one.
class Lease {
 public:
  static constexpr const char* kFolder = ".trellis.lease";
  struct Times {
    std::chrono::milliseconds renewed = std::chrono::seconds(5);
    std::chrono::milliseconds expired = std::chrono::seconds(60);  ///< when none renewed it so long
  };

  /// Waits for the end of leases that are not renewed any more; that of a process of this host
  /// which is no longer there ends at once. Throws ConfigError that names the process, host and
  /// command that write into the folder now. `advice`: how to choose another folder.
  Lease(std::shared_ptr<Storage> storage, const std::string& advice, Times times);
  Lease(std::shared_ptr<Storage> storage, const std::string& advice)
      : Lease(std::move(storage), advice, Times{}) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Called before a save: throws OutputError when the lease was not renewed in time, or another
  /// run has taken the folder meanwhile.
  void check();

 private:
  using Clock = std::chrono::steady_clock;
  void write();
  [[nodiscard]] std::string other();
  void wait_for(const std::string& path, const std::string& advice);
  void renew();
  void end();

  std::shared_ptr<Storage> storage_;
  Times times_;
  std::string path_;
  std::int64_t count_ = 0;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  Clock::time_point written_ = Clock::now();
  std::string lost_;  ///< why; "": it holds
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trellis::checkpoint
