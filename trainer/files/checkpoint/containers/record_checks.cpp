#include "trainer/files/checkpoint/containers/record_checks.h"

#include "base/log.h"

namespace trellis::checkpoint {

bool RecordChecks::once(const std::string& record, const std::function<void()>& check) {
  std::shared_ptr<Record> known;
  {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Record>& slot = records_[record];
    if (!slot) slot = std::make_shared<Record>();
    known = slot;
  }
  const std::scoped_lock lock(known->mutex);
  if (known->is_checked) return false;
  check();
  known->is_checked = true;
  return true;
}

void RecordChecks::say_unseen(const std::string& file) {
  if (!said_.exchange(true)) say_damage_is_unseen(file, "its records have no checksums");
}

void say_damage_is_unseen(const std::string& where, const std::string& what) {
  log_info(where + ": " + what +
           ", so damage of what is read cannot be seen; `trellis checkpoint verify "
           "--write-manifest` writes some, which every later load compares");
}

}  // namespace trellis::checkpoint
