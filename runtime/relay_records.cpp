#include "runtime/relay_records.h"

#include <c10/util/StringUtil.h>

namespace trellis::runtime {
namespace {

/// The thread that answers has its own patience for the others, which is shorter.
constexpr std::chrono::seconds kAnswerPatience{4};

std::string tenths(std::chrono::steady_clock::duration elapsed) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count() / 100;
  return c10::str(count / 10, ".", count % 10, " s");
}

}  // namespace

void RelayRecords::add(const Side& side, const std::shared_ptr<Transfer>& transfer) {
  CallPlace place = current_place();
  const std::lock_guard lock(mutex_);
  recorder_.add(side, transfer, -1, std::move(place));
}

void RelayRecords::note_group(std::shared_ptr<const GroupInfo> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

void RelayRecords::begin_wait(const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  waits_for_ = &transfer;
  since_ = Clock::now();
}

void RelayRecords::end_wait(Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  transfer.ended_ns = host_time_ns();
  transfer.done = true;
  waits_for_ = nullptr;
  since_ = Clock::now();
}

std::string RelayRecords::explain(const Transfer& transfer, const std::string& failure) {
  std::unique_lock lock(mutex_);
  if (question_.empty()) {
    question_ =
        c10::str("communication failure: rank ", rank_, " waited ", tenths(Clock::now() - since_),
                 " in ", recorder_.describe(transfer), ": ", failure.substr(0, failure.find('\n')));
  }
  answered_.wait_for(lock, kAnswerPatience, [this] { return has_answer_; });
  waits_for_ = nullptr;
  return question_ + (answer_.empty() ? "" : "\n" + answer_);
}

std::string RelayRecords::question() const {
  const std::lock_guard lock(mutex_);
  return question_;
}

void RelayRecords::answer(const std::string& text) {
  const std::lock_guard lock(mutex_);
  answer_ = text;
  has_answer_ = true;
  answered_.notify_all();
}

std::string RelayRecords::whereabouts() const {
  const std::lock_guard lock(mutex_);
  const std::string since = tenths(Clock::now() - since_);
  if (waits_for_ != nullptr)
    return c10::str("waits since ", since, " in ", recorder_.describe(*waits_for_));
  const std::string scopes = scopes_.text();
  return c10::str("runs outside any communication since ", since,
                  scopes.empty() ? "" : ", in " + scopes, "; last: ", recorder_.last());
}

FlightDump RelayRecords::dump() const {
  const std::string now = whereabouts();
  const std::lock_guard lock(mutex_);
  const auto ago = Clock::now() - since_;
  return {rank_, recorder_.entries(), groups_, now,
          host_time_ns() - std::chrono::nanoseconds(ago).count()};
}

}  // namespace trellis::runtime
