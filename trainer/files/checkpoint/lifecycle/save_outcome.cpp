#include "trainer/files/checkpoint/lifecycle/save_outcome.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace trellis::checkpoint {
namespace {

template <typename Remove>
void warn_if_stays(const CheckpointFolder& folder, const std::string& tag, Remove remove) {
  try {
    remove();
  } catch (const Error& error) {
    log_warning(fmt::format("{}/{}: cannot remove: {}", folder.address(), tag, error.what()));
  }
}

}  // namespace

void keep_saved(CheckpointFolder& folder, const KeptCheckpoint& saved,
                const std::vector<std::string>& replaced, const KeepRule& rule) {
  folder.add(saved);
  const auto say = [&](const std::string& tag, const std::string& what) {
    log_info(fmt::format("{}/{}: {}", folder.address(), tag, what));
  };
  for (const std::string& tag : replaced)
    warn_if_stays(folder, tag, [&] {
      folder.remove(tag);
      say(tag, "removed: " + saved.tag + " replaces it");
    });
  for (const std::string& tag : tags_to_remove(folder.complete(), rule))
    warn_if_stays(folder, tag, [&] {
      folder.remove(tag);
      say(tag, fmt::format("removed: save_top_k is {}", rule.save_top_k));
    });
  for (const std::string& tag : tags_to_strip(folder.complete(), rule))
    warn_if_stays(folder, tag, [&] {
      folder.drop_states(tag);
      say(tag, fmt::format("states of its optimizer removed: save_last_n_optim_states is {}",
                           rule.with_states));
    });
}

void drop_failed(CheckpointFolder& folder, const KeptCheckpoint& failed,
                 const std::string& reason) {
  log_warning(fmt::format(
      "{}/{}: the checkpoint of step {} is not saved: {}; what was written of it is removed; "
      "training goes on and saves the next one",
      folder.address(), failed.tag, failed.step, reason));
  warn_if_stays(folder, failed.tag, [&] { folder.discard(failed.tag); });
}

}  // namespace trellis::checkpoint
