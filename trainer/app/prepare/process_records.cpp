#include "trainer/app/prepare/process_records.h"

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace trellis::trainer {
namespace {

std::string step_name(std::int64_t step, int process) {
  return "recorded step/" + std::to_string(step) + "/" + std::to_string(process);
}

std::string accounts_name(int process) { return "device accounts/" + std::to_string(process); }

}  // namespace

ProcessRecords::ProcessRecords(runtime::ProcessLink& link, const runtime::DevicePlugin& plugin,
                               std::vector<int> ranks)
    : link_(link), plugin_(plugin), ranks_(std::move(ranks)) {}

std::string ProcessRecords::given(Give give) const {
  const char* bytes = nullptr;
  std::int64_t size = 0;
  plugin_.check(give(ranks_.data(), static_cast<std::int32_t>(ranks_.size()), &bytes, &size));
  return {bytes, static_cast<std::size_t>(size)};
}

void ProcessRecords::take(Take taken_by, const std::string& bytes) const {
  plugin_.check(taken_by(bytes.data(), static_cast<std::int64_t>(bytes.size())));
}

void ProcessRecords::bring_step(runtime::RankContext& rank, std::int64_t step) const {
  const auto& api = plugin_.api();
  if (api.give_step == nullptr) return;  // it keeps what it measured until the end
  if (link_.process() != 0)
    return link_.leave_text(step_name(step, link_.process()), given(api.give_step));
  for (int other = 1; other < link_.processes(); ++other)
    take(api.take_step, rank.take_text(step_name(step, other)));
}

void ProcessRecords::bring_accounts(std::chrono::milliseconds patience) const {
  const auto& api = plugin_.api();
  if (link_.process() != 0)
    return link_.leave_text(accounts_name(link_.process()), given(api.give_accounts));
  for (int other = 1; other < link_.processes(); ++other) {
    const std::optional<std::string> bytes = link_.take_text(accounts_name(other), patience);
    if (!bytes) {
      throw Error(ExitCode::kInternal,
                  "process " + std::to_string(other) +
                      " ended before it said what its ranks did: look at its output");
    }
    take(api.take_accounts, *bytes);
  }
}

}  // namespace trellis::trainer
