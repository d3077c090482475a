// Sessions of several processes: what ranks of one did, given to another.
#include <fmt/format.h>

#include "base/byte_codec.h"
#include "base/error.h"
#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/record/step_codec.h"
#include "device/driver/reports/memory_report.h"
#include "device/driver/session_impl.h"

namespace trellis::device {
namespace {

using nlohmann::json;

/// A rank's step: its graphs, "" when they are those given before, and its stream.
struct RankStep {
  std::int32_t rank = 0;
  std::string graphs, stream;
};

template <typename Visitor, typename Steps>
void visit(Visitor& v, Steps& steps) {
  v.list(steps, [&](auto& step) { v(step.rank), v(step.graphs), v(step.stream); });
}

ContentHash hash_of(std::string_view text) {
  ContentHasher hasher;
  hasher.bytes(text.data(), text.size());
  return hasher.finish();
}

[[noreturn]] void refuse(const char* what) {
  throw Error(ExitCode::kInternal, fmt::format("{} of another process: its bytes are damaged, or "
                                               "of another version of this program",
                                               what));
}

json json_of(const OperatorUses& uses) {
  json rows = json::array();
  for (const auto& [key, use] : uses.uses())
    rows.push_back({key.first, key.second.first, key.second.second, use.count, use.places});
  return rows;
}

OperatorUses uses_of(const json& rows) {
  OperatorUses uses;
  for (const json& row : rows)
    uses.add(row.at(0), {row.at(1).get<DType>(), row.at(2).get<HostType>()},
             {row.at(3).get<std::int64_t>(), row.at(4).get<std::map<std::string, std::int64_t>>()});
  return uses;
}

}  // namespace

std::string Session::give_step(const std::vector<int>& ranks) {
  std::vector<RankStep> steps;
  for (const int index : ranks) {
    const RankRecorder::Impl& recorded = rank(index).impl();
    RankStep step{index, encode(recorded.graphs), encode(recorded.finished)};
    ContentHash& given = impl_->given_graphs[index];
    const ContentHash hash = hash_of(step.graphs);
    if (hash == given) step.graphs.clear();
    given = hash;
    steps.push_back(std::move(step));
  }
  ByteWriter bytes;
  visit(bytes, steps);
  return bytes.bytes();
}

void Session::take_step(std::string_view bytes) {
  ByteReader reader(bytes);
  std::vector<RankStep> steps;
  visit(reader, steps);
  if (!reader.ok() || !reader.at_end()) refuse("the step");
  for (const RankStep& step : steps) {
    RankRecorder::Impl& recorded = rank(step.rank).impl();
    if (!step.graphs.empty()) {
      auto graphs = decode_graphs(step.graphs);
      if (!graphs) refuse("the graphs");
      recorded.graphs = std::move(*graphs);
    }
    auto stream = decode_stream(step.stream, recorded.graphs);
    if (!stream) refuse("the step");
    recorded.finished = std::move(*stream);
  }
}

std::string Session::give_accounts(const std::vector<int>& ranks) {
  json rows = json::array();
  for (const int index : ranks) {
    const RankRecorder& recorder = rank(index);
    rows.push_back({index, memory_row(recorder), json_of(recorder.uses())});
  }
  return rows.dump();
}

void Session::take_accounts(std::string_view bytes) {
  try {
    for (const json& row : json::parse(bytes)) {
      const int index = row.at(0).get<int>();
      (void)rank(index);
      impl_->taken[index] = {row.at(1), uses_of(row.at(2))};
    }
  } catch (const json::exception&) {
    refuse("the memory and the operators");
  }
}

}  // namespace trellis::device
