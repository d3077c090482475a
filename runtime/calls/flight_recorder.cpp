#include "runtime/calls/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <c10/util/StringUtil.h>

namespace trellis::runtime {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

/// Elements that a member gives and gets.
std::pair<std::int64_t, std::int64_t> sizes_of(const Side& side, std::int64_t members) {
  const std::int64_t all = side.call.elements;
  switch (side.call.op) {
    case CommOp::kAllGather:
    case CommOp::kGather: return {all / members, all};
    case CommOp::kReduceScatter:
    case CommOp::kScatter: return {all, all / members};
    case CommOp::kAllToAll: return {sum(side.input_splits), sum(side.output_splits)};
    default: return {all, all};
  }
}

}  // namespace

std::int64_t host_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void FlightRecorder::add(const Side& side, std::shared_ptr<const Transfer> transfer,
                         std::int64_t step, CallPlace place) {
  const bool same_step = added_ > 0 && at(added_ - 1).step == step;
  const auto members = static_cast<std::int64_t>(transfer->group->ranks.size());
  const auto [gives, gets] = sizes_of(side, members);
  Entry entry{side.call,
              std::move(place),
              std::move(transfer),
              step,
              gives,
              gets,
              same_step ? at(added_ - 1).in_step + 1 : 0,
              host_time_ns()};
  if (entries_.size() < kCapacity) {
    entries_.push_back(std::move(entry));
  } else {
    entries_[added_ % kCapacity] = std::move(entry);
  }
  ++added_;
}

std::string FlightRecorder::last() const {
  return added_ == 0 ? "no communication yet" : describe_entry(at(added_ - 1));
}

std::size_t FlightRecorder::index(const Transfer& transfer) const {
  for (std::size_t i = added_; i > oldest(); --i) {
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
  std::string text;
  for (std::size_t i = std::max(oldest(), end - std::min(end, count)); i < end; ++i)
    text += indent + describe_entry(at(i)) + "\n";
  return text.empty() ? indent + "nothing\n" : text;
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  std::vector<FlightEntry> result;
  if (added_ == 0) return result;
  std::size_t begin = oldest();
  const std::int64_t cut = at(begin).step;
  if (begin > 0 && at(added_ - 1).step != cut) {
    while (at(begin).step == cut) ++begin;
  }
  for (std::size_t i = begin; i < added_; ++i) {
    // PyTorch's analyzer knows communications only.
    if (at(i).call.op != CommOp::kNewGroup) result.push_back(record_of(at(i)));
  }
  return result;
}

FlightEntry FlightRecorder::record_of(const Entry& entry) {
  const Transfer& transfer = *entry.transfer;
  FlightEntry record;
  record.call = entry.call;
  record.place = entry.place;
  record.group = transfer.group;
  if (const auto* message = dynamic_cast<const Message*>(&transfer)) {
    record.sender = message->sender;
    record.receiver = message->receiver;
  }
  record.sequence = transfer.sequence;
  record.input_elements = entry.input_elements;
  record.output_elements = entry.output_elements;
  record.step = entry.step;
  record.in_step = entry.in_step;
  record.began_ns = entry.began_ns;
  record.ended_ns = transfer.ended_ns;
  return record;
}

std::string FlightRecorder::describe_entry(const Entry& entry) {
  const Transfer& transfer = *entry.transfer;
  std::string text =
      c10::str(runtime::describe(entry.call), ", #", transfer.sequence, " of ",
               transfer.group->label, transfer.done ? " (complete)" : " (not complete)");
  if (entry.step >= 0) text += c10::str(", step ", entry.step);
  const std::int64_t bytes = size_in_bytes(entry.call);
  if (bytes > 0) text += c10::str(", ", bytes, " bytes");
  return text + runtime::describe(entry.place);
}

}  // namespace trellis::runtime
