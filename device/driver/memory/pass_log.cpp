#include "device/driver/memory/pass_log.h"

namespace trellis::device {

void PassLog::clear(std::uint64_t first_serial, std::uint32_t op) {
  passes_.clear();
  marks_.clear();
  between_ = true;
  first_serial_ = first_serial;
  last_op_ = op;
  places_.clear();
  comm_places_.clear();
  openings_.clear();
}

/// Returns the pass of the next event. Events outside of all passes, or right after a mark, get
/// their own pass, of kind 0.
PassLog::Pass& PassLog::pass() {
  if (between_) {
    between_ = false;
    passes_.emplace_back();
  }
  return passes_.back();
}

void PassLog::add(Event event, std::uint32_t op) {
  event.ops = op - last_op_;
  last_op_ = op;
  pass().events.push_back(event);
}

/// A micro-batch's scope opens several times in one phase: to let its message arrive, for its pass,
/// for each of the rank's virtual stages.
void PassLog::begin_pass(const std::string& phase, std::int32_t microbatch) {
  const std::uint32_t before = openings_[{phase, microbatch}]++;
  const auto kind =
      kinds_.try_emplace({phase, before}, static_cast<std::uint32_t>(kinds_.size() + 1))
          .first->second;
  between_ = false;
  Pass& pass = passes_.emplace_back();
  pass.kind = kind;
  pass.microbatch = microbatch;
}

void PassLog::allocated(MemoryBlock& block, std::uint32_t op) {
  add({What::kAllocate, block.category, 0, block.scope, block.requested}, op);
  places_.push_back({static_cast<std::uint32_t>(passes_.size() - 1), passes_.back().blocks.size()});
  passes_.back().blocks.push_back(&block);
}

void PassLog::touched(What what, const MemoryBlock& block, BufferCategory category,
                      std::uint32_t op) {
  const std::int32_t microbatch = pass().microbatch;
  Event event{what, category};
  if (block.serial < first_serial_) {
    event.ref = {kElsewhere, 0, block.serial};
  } else {
    const Place& at = place(block.serial);
    event.ref = {passes_[at.pass].kind, microbatch - passes_[at.pass].microbatch, at.index};
  }
  add(event, op);
}

void PassLog::graph_ran(std::uint32_t graph, int stream, const std::vector<std::uint32_t>& comms,
                        std::uint32_t op) {
  Pass& now = pass();
  Run run{graph, stream, {}};
  for (const std::uint32_t handle : comms) {
    const Place& at = comm_places_[handle];
    run.comms.push_back(
        {passes_[at.pass].kind, now.microbatch - passes_[at.pass].microbatch, at.index});
  }
  const auto id = static_cast<std::uint32_t>(now.runs.size());
  now.runs.push_back(std::move(run));
  add({What::kGraphRan, {}, 0, id}, op);
}

void PassLog::comm_started(std::uint32_t handle, std::uint32_t stream, std::uint32_t kind,
                           std::int64_t elements, std::uint32_t op) {
  add({What::kCommStart, {}, 0, stream, elements, {kind, 0, 0}}, op);
  comm_places_.push_back(
      {static_cast<std::uint32_t>(passes_.size() - 1), passes_.back().comms.size()});
  passes_.back().comms.push_back(handle);
}

void PassLog::mark(std::uint32_t op) {
  add({What::kMark}, op);
  marks_.push_back(passes_.size());
  between_ = true;
}

PassLog::Range PassLog::last_period(std::int32_t& shift) const {
  if (marks_.size() < 3) return {};
  const std::size_t first = marks_[marks_.size() - 3], middle = marks_[marks_.size() - 2],
                    end = marks_.back();
  if (end - middle != middle - first || end == middle) return {};
  shift = passes_[middle].microbatch - passes_[first].microbatch;
  if (shift <= 0) return {};
  for (std::size_t i = middle; i < end; ++i) {
    const Pass &now = passes_[i], &before = passes_[i - (middle - first)];
    if (now.kind == 0 || now.kind != before.kind || now.microbatch - before.microbatch != shift)
      return {};
    if (now.events != before.events || now.runs != before.runs) return {};
    for (const Event& event : now.events) {
      if (event.what == What::kOther || event.ref.kind == kElsewhere) return {};
    }
  }
  return {middle, end};
}

}  // namespace trellis::device
