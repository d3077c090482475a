#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace trellis::checkpoint {

/// Which records of torch files were compared with their checksums: each is once, before the first
/// of its bytes is used. Readers of the files of one checkpoint share it, since they are opened
/// again and again.
class RecordChecks {
 public:
  enum class Rule {
    kEachRecord,
    kNone,  ///< whole files are compared with a hash before they are read
  };
  explicit RecordChecks(Rule rule = Rule::kEachRecord) : rule_(rule) {}

  [[nodiscard]] bool are_needed() const { return rule_ == Rule::kEachRecord; }
  /// Calls `check` unless the record was checked before; what it throws leaves the record
  /// unchecked. Others that ask for the same record wait. `record`: unique among all files. Returns
  /// whether it was called.
  bool once(const std::string& record, const std::function<void()>& check);
  /// A record that is read has none: one line for all of them.
  void say_unseen(const std::string& file);

 private:
  struct Record {
    std::mutex mutex;
    bool is_checked = false;
  };
  Rule rule_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Record>> records_;
  std::atomic<bool> said_ = false;
};

/// Logs that damage of `where` cannot be seen: its container has no checksums, and it has no
/// manifest.
void say_damage_is_unseen(const std::string& where, const std::string& what);

}  // namespace trellis::checkpoint
