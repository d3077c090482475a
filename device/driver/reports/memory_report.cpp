#include "device/driver/reports/memory_report.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "device/driver/record/rank_recorder_impl.h"
#include "device/driver/reports/attribution.h"

namespace trellis::device {
namespace {

using nlohmann::json;

json as_json(const MemoryStat& stat) {
  return {{"current", stat.current},
          {"peak", stat.peak},
          {"allocated", stat.allocated},
          {"freed", stat.freed}};
}

json as_json(const PoolStats& stats) {
  return {{"allocated_bytes", as_json(stats.allocated_bytes)},
          {"reserved_bytes", as_json(stats.reserved_bytes)},
          {"active_bytes", as_json(stats.active_bytes)},
          {"requested_bytes", as_json(stats.requested_bytes)},
          {"allocation", as_json(stats.allocations)},
          {"active", as_json(stats.active)},
          {"segment", as_json(stats.segments)}};
}

json categories(const std::array<std::int64_t, kNumBufferCategories>& bytes) {
  json all;
  for (int c = 0; c < kNumBufferCategories; ++c)
    all[std::string(name(static_cast<BufferCategory>(c))) + "_bytes"] =
        bytes[static_cast<std::size_t>(c)];
  return all;
}

json as_json(const MemoryTotals& totals) {
  return {{"reserved_bytes", totals.reserved},
          {"allocated_bytes", totals.allocated},
          {"active_bytes", totals.active},
          {"by_category", categories(totals.by_category)}};
}

const char* state_name(MemoryBlock::State state) {
  switch (state) {
    case MemoryBlock::State::kActive: return "active_allocated";
    case MemoryBlock::State::kHeld: return "active_pending_free";
    case MemoryBlock::State::kFree: break;
  }
  return "inactive";
}

json as_json(const MemoryBlock& block, const InternTable& interned) {
  json row = {{"address", block.address}, {"size", block.size}, {"state", state_name(block.state)}};
  if (block.state == MemoryBlock::State::kFree) return row;
  const Scope& scope = interned.scope(block.scope);
  row.update({{"requested_size", block.requested},
              {"category", name(block.category)},
              {"phase", scope.phase},
              {"layer", scope.layer},
              {"buffer", block.buffer},
              {"op", block.op}});
  return row;
}

/// The peak of each phase, in the order in which they first allocated, what belongs to none last:
/// the highest of its scopes; and what lived when the first of them began.
json phase_rows(const RankRecorder& recorder) {
  struct Row {
    std::string phase;
    MemoryAccount::ScopePeak peak, first;
  };
  std::vector<Row> rows;
  const std::vector<MemoryAccount::ScopePeak> scopes = recorder.memory().scope_peaks();
  for (std::size_t scope = 0; scope < scopes.size(); ++scope) {
    if (scopes[scope].allocated == 0) continue;
    const std::string& phase = recorder.interned().scope(static_cast<std::uint32_t>(scope)).phase;
    auto row = std::ranges::find(rows, phase, &Row::phase);
    if (row == rows.end()) row = rows.insert(row, {phase, {}, scopes[scope]});
    if (scopes[scope].first_serial < row->first.first_serial) row->first = scopes[scope];
    const std::int64_t reserved = std::max(row->peak.reserved, scopes[scope].reserved);
    if (scopes[scope].allocated > row->peak.allocated) row->peak = scopes[scope];
    row->peak.reserved = reserved;
  }
  std::ranges::stable_partition(rows, [](const Row& row) { return !row.phase.empty(); });
  json all = json::array();
  for (const Row& row : rows) {
    all.push_back({{"phase", row.phase},
                   {"peak_bytes", row.peak.allocated},
                   {"peak_reserved_bytes", row.peak.reserved},
                   {"at_start", categories(row.first.at_start)},
                   {"at_peak", categories(row.peak.at_peak)}});
  }
  return all;
}

/// The tensors that lived at the peak, summed by category, by phase and by the component that made
/// them; largest first.
json live_rows(const RankRecorder& recorder) {
  std::map<std::tuple<BufferCategory, std::string, std::string>,
           std::pair<std::int64_t, std::int64_t>>
      sums;  // bytes, tensors
  for (const MemoryAccount::LiveTensor& tensor : recorder.memory().live_at_peak()) {
    const Scope& scope = recorder.interned().scope(tensor.scope);
    auto& [bytes, count] = sums[{tensor.category, scope.phase, without_numbers(scope.layer)}];
    bytes += tensor.size;
    ++count;
  }
  json rows = json::array();
  for (const auto& [key, sum] : sums) {
    const auto& [category, phase, component] = key;
    rows.push_back({{"category", name(category)},
                    {"phase", phase},
                    {"component", component},
                    {"bytes", sum.first},
                    {"tensors", sum.second}});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const json& a, const json& b) {
    return a.at("bytes").get<std::int64_t>() > b.at("bytes").get<std::int64_t>();
  });
  return rows;
}

/// Facts that only an account without limit has.
json unlimited_facts(const RankRecorder& recorder) {
  json facts = {{"num_ooms", recorder.memory().stats().num_ooms},
                {"live_at_peak", live_rows(recorder)}};
  if (const auto refusal = recorder.memory().first_refusal()) {
    const Scope& scope = recorder.interned().scope(refusal->scope);
    facts["first_refusal"] = {{"phase", scope.phase},
                              {"layer", scope.layer},
                              {"bytes", refusal->bytes},
                              {"allocated_before", refusal->allocated}};
  }
  return facts;
}

/// The peak of each stretch of events of one phase.
class PhasePeaks {
 public:
  void see(const MemoryEvent& event, const std::string& phase, const MemoryTotals& now) {
    if (rows_.empty() || rows_.back().phase != phase)
      rows_.push_back({phase, event.op, event.op, {}});
    Row& row = rows_.back();
    row.last_op = event.op;
    if (now.allocated >= row.peak.allocated) row.peak = now;
  }
  [[nodiscard]] json report() const {
    json all = json::array();
    for (const Row& row : rows_)
      all.push_back({{"phase", row.phase},
                     {"first_op", row.first_op},
                     {"last_op", row.last_op},
                     {"at_peak", as_json(row.peak)}});
    return all;
  }

 private:
  struct Row {
    std::string phase;
    std::uint32_t first_op, last_op;
    MemoryTotals peak;
  };
  std::vector<Row> rows_;
};

}  // namespace

json memory_stats(const MemoryAccount& memory) {
  const AllocatorStats stats = memory.stats();
  json all = as_json(stats.all);
  all.update({{"schema", "trellis.memory_stats/1"},
              {"small_pool", as_json(stats.pools[0])},
              {"large_pool", as_json(stats.pools[1])},
              {"num_alloc_retries", stats.num_alloc_retries},
              {"num_ooms", stats.num_ooms},
              {"num_tensor_frees", stats.num_tensor_frees},
              {"allocation_requests", stats.allocation_requests},
              {"capacity_bytes", memory.capacity().value},
              {"by_category", categories(stats.by_category)}});
  return all;
}

json memory_snapshot(const RankRecorder& recorder) {
  json segments = json::array();
  for (const MemoryAccount::Segment& segment : recorder.memory().snapshot()) {
    json blocks = json::array();
    std::int64_t allocated = 0, active = 0;
    for (const MemoryBlock& block : segment.blocks) {
      if (block.state != MemoryBlock::State::kFree) allocated += block.size;
      if (block.state == MemoryBlock::State::kActive) active += block.size;
      blocks.push_back(as_json(block, recorder.interned()));
    }
    segments.push_back(
        {{"device", recorder.rank()},
         {"address", segment.segment.address},
         {"total_size", segment.segment.size},
         {"allocated_size", allocated},
         {"active_size", active},
         {"segment_type", segment.segment.pool == MemoryPool::kSmall ? "small" : "large"},
         {"stream", 0},
         {"blocks", std::move(blocks)}});
  }
  return {{"schema", "trellis.memory_snapshot/1"},
          {"rank", recorder.world_rank()},
          {"capacity_bytes", recorder.memory().capacity().value},
          {"segments", std::move(segments)}};
}

json memory_timeline(const RankRecorder& recorder) {
  const MemoryTimeline timeline = recorder.memory().timeline();
  MemoryTotals now = timeline.before();
  PhasePeaks phases;
  json events = json::array();
  for (const MemoryEvent& event : timeline.events()) {
    now.apply(event);
    const Scope& scope =
        event.scope == MemoryEvent::kManyScopes ? Scope{} : recorder.interned().scope(event.scope);
    const auto kind = static_cast<MemoryEventKind>(event.kind);
    if (kind == MemoryEventKind::kAllocate) phases.see(event, scope.phase, now);
    json row = {{"op", event.op},
                {"event", name(kind)},
                {"address", event.address()},
                {"size", event.size()},
                {"pool", event.small_pool != 0 ? "small" : "large"},
                {"reserved", now.reserved},
                {"allocated", now.allocated}};
    if (kind <= MemoryEventKind::kRecategorize)
      row.update({{"category", name(static_cast<BufferCategory>(event.category))},
                  {"phase", scope.phase},
                  {"layer", scope.layer}});
    if (kind == MemoryEventKind::kRecategorize)
      row["before"] = name(static_cast<BufferCategory>(event.before));
    events.push_back(std::move(row));
  }
  return {{"schema", "trellis.memory_timeline/1"},
          {"rank", recorder.world_rank()},
          {"dropped_events", timeline.dropped()},
          {"before", as_json(timeline.before())},
          {"events", std::move(events)},
          {"after", as_json(now)},
          {"phases", phases.report()}};
}

json memory_row(const RankRecorder& recorder) {
  const MemoryAccount& memory = recorder.memory();
  const AllocatorStats stats = memory.stats();
  const auto& graph = recorder.impl().largest_graph;
  json row = {
      {"rank", recorder.world_rank()},
      {"peak_bytes", stats.all.allocated_bytes.peak},
      {"peak_reserved_bytes", stats.all.reserved_bytes.peak},
      {"capacity_bytes", memory.capacity().value},
      {"peak_phase", recorder.interned().scope(memory.peak_scope()).phase},
      {"at_peak", categories(memory.at_peak_by_category())},
      {"current_bytes", stats.all.allocated_bytes.current},
      {"current_reserved_bytes", stats.all.reserved_bytes.current},
      {"current", categories(stats.by_category)},
      {"num_alloc_retries", stats.num_alloc_retries},
      {"phases", phase_rows(recorder)},
      {"largest_graph",
       {{"operations", graph.operations}, {"record_bytes", graph.host_bytes}}}};  // on the host
  if (memory.unlimited()) row.update(unlimited_facts(recorder));
  return row;
}

}  // namespace trellis::device
