#include "runtime/flight_recorder.h"

#include <algorithm>

#include <c10/util/StringUtil.h>

namespace trellis::runtime {

void FlightRecorder::add(CommCall call, std::shared_ptr<const Transfer> transfer,
                         std::int64_t step) {
  entries_[added_++ % kCapacity] = {std::move(call), std::move(transfer), step};
}

std::string FlightRecorder::last() const {
  return added_ == 0 ? "no communication yet" : describe_entry(entries_[(added_ - 1) % kCapacity]);
}

std::size_t FlightRecorder::index(const Transfer& transfer) const {
  const std::size_t oldest = added_ - std::min(added_, kCapacity);
  for (std::size_t i = added_; i > oldest; --i) {
    if (at(i - 1).transfer.get() == &transfer) return i - 1;
  }
  return added_ - 1;
}

std::string FlightRecorder::describe(const Transfer& transfer) const {
  return describe_entry(at(index(transfer)));
}

std::string FlightRecorder::recent_before(const Transfer& transfer, std::size_t count,
                                          const std::string& indent) const {
  const std::size_t end = index(transfer);
  const std::size_t oldest = added_ - std::min(added_, kCapacity);
  std::string text;
  for (std::size_t i = std::max(oldest, end - std::min(end, count)); i < end; ++i)
    text += indent + describe_entry(at(i)) + "\n";
  return text.empty() ? indent + "nothing\n" : text;
}

std::string FlightRecorder::describe_entry(const Entry& entry) {
  const Transfer& transfer = *entry.transfer;
  std::string text =
      c10::str(runtime::describe(entry.call), ", #", transfer.sequence, " of ",
               transfer.group->label, transfer.done ? " (complete)" : " (not complete)");
  if (entry.step >= 0) text += c10::str(", step ", entry.step);
  return text;
}

}  // namespace trellis::runtime
