#include "device/compiler/emit/program_builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace trellis::device {
namespace {

using isa::Engine;
using isa::Instruction;
using isa::Opcode;

constexpr int kSync = static_cast<int>(Engine::kSync);
constexpr std::int64_t kMaxWait = 60000;

// The fixed semaphores: per engine a gate (waited on by the engine) and, per parity, an end; per
// parity, the count of stores.
constexpr std::uint16_t gate_semaphore(int engine) { return static_cast<std::uint16_t>(engine); }
constexpr std::uint16_t end_semaphore(int engine, int parity) {
  return static_cast<std::uint16_t>(5 + engine * 2 + parity);
}
constexpr std::uint16_t store_semaphore(int parity) {
  return static_cast<std::uint16_t>(15 + parity);
}
constexpr std::uint16_t kFirstFree = ProgramBuilder::kOwnSemaphores;

bool moves_to_hbm(const Entry& entry) {
  const auto& i = entry.instruction;
  const bool dma = i.opcode == Opcode::kDma || i.opcode == Opcode::kDmaGather ||
                   i.opcode == Opcode::kDmaScatterAdd || i.opcode == Opcode::kDmaTranspose;
  return dma && entry.refs[0].tile == isa::kNone;
}

std::int64_t executions(const Phase& phase, const Entry& entry) {
  std::int64_t n = 1;
  for (int l = entry.loop; l > 0; l = phase.loops()[l].parent) n *= phase.loops()[l].count;
  return n;
}

void add_wait(Instruction& i, std::uint16_t id, std::int64_t value) {
  for (; value > 0; value -= kMaxWait)
    i.waits.push_back({id, static_cast<std::uint16_t>(std::min(value, kMaxWait))});
}
void add_post(Instruction& i, std::uint16_t id, std::int64_t value) {
  for (; value > 0; value -= kMaxWait)
    i.updates.push_back({id, static_cast<std::uint16_t>(std::min(value, kMaxWait))});
}

using AddSync = void (*)(Instruction&, std::uint16_t, std::int64_t);

/// Adds every token's wait or post; `ids`: the semaphores that the plan's numbers became.
void put(const std::vector<SyncPlan::Token>& tokens, const std::vector<std::uint16_t>& ids,
         AddSync add, Instruction& into) {
  for (const auto& token : tokens)
    add(into, ids[static_cast<std::size_t>(token.semaphore)], token.value);
}

Instruction semaphore_only(const Phase& phase) {
  Instruction i;
  i.kernel = phase.kernel();
  return i;
}

}  // namespace

ProgramBuilder::ProgramBuilder(std::string name, const sim::CoreConfig& core)
    : core_(core), next_semaphore_(kFirstFree) {
  program_.name = std::move(name);
  program_.segments.emplace_back();
}

std::uint32_t ProgramBuilder::add_kernel(const isa::Kernel& kernel) {
  program_.kernels.push_back(kernel);
  return static_cast<std::uint32_t>(program_.kernels.size() - 1);
}

std::uint32_t ProgramBuilder::add_hbm(const std::string& name, std::int64_t bytes,
                                      std::int32_t slot) {
  isa::Buffer buffer;
  buffer.name = name;
  buffer.bytes = bytes;
  buffer.slot = slot;
  program_.buffers.push_back(buffer);
  return static_cast<std::uint32_t>(program_.buffers.size() - 1);
}

std::uint32_t ProgramBuilder::scratch(std::int64_t bytes) { return add_hbm("scratch", bytes, -1); }

void ProgramBuilder::collect_hbm(const Phase& phase, Running& now) const {
  for (const Entry& entry : phase.entries()) {
    for (std::size_t r = 0; r < entry.refs.size(); ++r) {
      const Ref& ref = entry.refs[r];
      if (ref.tile == isa::kNone && ref.pattern.present())
        (r == 0 ? now.writes : now.reads).insert(ref.pattern.buffer);
    }
  }
}

void ProgramBuilder::place_memory(const Phase& phase, Running& now) {
  const auto place = [](std::int64_t size, std::int64_t capacity, std::int64_t busy_begin,
                        std::int64_t busy_end) {
    if (size <= busy_begin || busy_begin == busy_end) return std::int64_t{0};
    return busy_end + size <= capacity ? busy_end : 0;
  };
  const std::int64_t sbuf = phase.sbuf_bytes(), psum = phase.psum_bytes();
  TRELLIS_CHECK(sbuf <= core_.limits.sbuf_bytes_per_partition,
                fmt::format("kernel {} needs {} bytes of SBUF per partition, the core has {}",
                            program_.kernels[phase.kernel()].name, sbuf,
                            core_.limits.sbuf_bytes_per_partition));
  TRELLIS_CHECK(psum <= core_.limits.psum_bytes_per_partition,
                fmt::format("kernel {} needs {} bytes of PSUM per partition",
                            program_.kernels[phase.kernel()].name, psum));
  now.sbuf_begin =
      place(sbuf, core_.limits.sbuf_bytes_per_partition, previous_.sbuf_begin, previous_.sbuf_end);
  now.sbuf_end = now.sbuf_begin + sbuf;
  now.psum_begin =
      place(psum, core_.limits.psum_bytes_per_partition, previous_.psum_begin, previous_.psum_end);
  now.psum_end = now.psum_begin + psum;
}

bool ProgramBuilder::conflicts(const Running& before, const Running& now) const {
  if (before.joined) return false;
  const auto shared = [](const std::set<std::uint32_t>& a, const std::set<std::uint32_t>& b) {
    return std::any_of(a.begin(), a.end(), [&](std::uint32_t x) { return b.contains(x); });
  };
  const bool sbuf = before.sbuf_begin < now.sbuf_end && now.sbuf_begin < before.sbuf_end;
  const bool psum = before.psum_begin < now.psum_end && now.psum_begin < before.psum_end;
  return sbuf || psum || shared(before.writes, now.reads) || shared(before.writes, now.writes) ||
         shared(before.reads, now.writes);
}

void ProgramBuilder::add_buffers(Phase& phase, const Running& now) {
  std::vector<std::uint32_t> ids;
  for (const Tile& tile : phase.tile_list()) {
    if (tile.space == isa::MemorySpace::kHbm) {  // an order, no memory
      ids.push_back(isa::kNone);
      continue;
    }
    isa::Buffer buffer;
    buffer.space = tile.space;
    const bool sbuf = tile.space == isa::MemorySpace::kSbuf;
    buffer.name = fmt::format("{}{}", sbuf ? "s" : "p", ids.size());
    buffer.num_partitions = static_cast<std::uint16_t>(core_.limits.partitions);
    buffer.bytes_per_partition = static_cast<std::uint32_t>(tile.slot_bytes * tile.depth);
    buffer.address =
        static_cast<std::uint32_t>(tile.address + (sbuf ? now.sbuf_begin : now.psum_begin));
    ids.push_back(static_cast<std::uint32_t>(program_.buffers.size()));
    program_.buffers.push_back(std::move(buffer));
  }
  for (Entry& entry : phase.entries()) {
    const auto bind = [&](isa::AccessPattern& pattern, const Ref& ref) {
      if (ref.tile != isa::kNone) pattern.buffer = ids[ref.tile];
    };
    bind(entry.instruction.dst, entry.refs[0]);
    bind(entry.instruction.src0, entry.refs[1]);
    bind(entry.instruction.src1, entry.refs[2]);
    bind(entry.instruction.dst1, entry.refs[3]);
  }
}

std::uint16_t ProgramBuilder::take_semaphore(int waiter, Running& now) {
  auto& list = free_[static_cast<std::size_t>(waiter)];
  std::uint16_t id = 0;
  if (!list.empty()) {
    id = list.back();
    list.pop_back();
  } else {
    id = next_semaphore_++;
    TRELLIS_CHECK(id < core_.limits.semaphores,
                  fmt::format("a program needs more than {} semaphores", core_.limits.semaphores));
  }
  now.semaphores.push_back(id);
  now.waiters.push_back(static_cast<std::size_t>(waiter));
  return id;
}

std::vector<std::uint16_t> ProgramBuilder::assign_semaphores(const SyncPlan& plan, Running& now) {
  std::vector<std::uint16_t> ids;
  for (int waiter : plan.waiter) ids.push_back(take_semaphore(waiter, now));
  return ids;
}

void ProgramBuilder::join(Running& running, Instruction& into) {
  if (running.joined) return;
  for (int e = 0; e < isa::kNumEngines; ++e) {
    if (running.engines[e]) into.waits.push_back({end_semaphore(e, running.parity), 1});
  }
  add_wait(into, store_semaphore(running.parity), running.stores);
  for (const auto& token : running.sync_drains)
    add_wait(into, static_cast<std::uint16_t>(token.semaphore), token.value);
  running.joined = true;
}

void ProgramBuilder::append(Phase phase) {
  phase.resolve();
  Running now;
  now.joined = false;
  now.parity = parity_;
  parity_ ^= 1;
  collect_hbm(phase, now);
  place_memory(phase, now);
  add_buffers(phase, now);
  const SyncPlan plan = plan_sync(phase);

  Instruction gate;
  gate.kernel = phase.kernel();
  const auto release = [&](Running& running) {
    if (running.joined) return;
    join(running, gate);
    for (std::size_t i = 0; i < running.semaphores.size(); ++i)
      free_[running.waiters[i]].push_back(running.semaphores[i]);
    running.semaphores.clear();
    running.waiters.clear();
  };
  release(before_previous_);
  if (conflicts(previous_, now)) release(previous_);
  const auto ids = assign_semaphores(plan, now);
  emit_queues(phase, plan, ids, now, gate);
  before_previous_ = std::move(previous_);
  previous_ = std::move(now);
}

void ProgramBuilder::emit_queues(const Phase& phase, const SyncPlan& plan,
                                 const std::vector<std::uint16_t>& ids, Running& now,
                                 Instruction gate) {
  const auto& entries = phase.entries();
  std::vector<std::array<bool, isa::kNumEngines>> in_loop(phase.loops().size());
  for (const Entry& entry : entries) {
    if (entry.kind != Entry::Kind::kInstruction) continue;
    now.engines[static_cast<int>(entry.engine)] = true;
    for (int l = entry.loop; l > 0; l = phase.loops()[l].parent)
      in_loop[l][static_cast<int>(entry.engine)] = true;
  }
  now.engines[kSync] = false;  // Sync itself is in order
  emit_gate(phase, plan, ids, now, std::move(gate));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (entry.kind != Entry::Kind::kInstruction) {
      for (int e = 0; e < isa::kNumEngines; ++e) {
        if (in_loop[static_cast<std::size_t>(entry.loop)][e]) emit_loop(phase, plan, ids, i, e);
      }
      continue;
    }
    Instruction instruction = entry.instruction;
    put(plan.waits[i], ids, add_wait, instruction);
    put(plan.posts[i], ids, add_post, instruction);
    if (moves_to_hbm(entry)) {
      instruction.updates.push_back({store_semaphore(now.parity), 1});
      now.stores += executions(phase, entry);
    }
    queue(static_cast<int>(entry.engine)).push_back(std::move(instruction));
  }
  for (int e = 0; e < isa::kNumEngines; ++e) {
    if (!now.engines[e]) continue;
    Instruction end = semaphore_only(phase);
    put(plan.drains[e], ids, add_wait, end);
    end.updates.push_back({end_semaphore(e, now.parity), 1});
    queue(e).push_back(std::move(end));
  }
  for (const auto& token : plan.drains[kSync])
    now.sync_drains.push_back({ids[static_cast<std::size_t>(token.semaphore)], token.value});
}

void ProgramBuilder::emit_gate(const Phase& phase, const SyncPlan& plan,
                               const std::vector<std::uint16_t>& ids, const Running& now,
                               Instruction gate) {
  for (int e = 0; e < isa::kNumEngines; ++e) {
    if (now.engines[e]) gate.updates.push_back({gate_semaphore(e), 1});
  }
  put(plan.credits[kSync], ids, add_post, gate);
  if (!gate.waits.empty() || !gate.updates.empty()) queue(kSync).push_back(gate);
  for (int e = 0; e < isa::kNumEngines; ++e) {
    if (!now.engines[e]) continue;
    Instruction start = semaphore_only(phase);
    start.waits.push_back({gate_semaphore(e), 1});
    put(plan.credits[e], ids, add_post, start);
    queue(e).push_back(std::move(start));
  }
}

void ProgramBuilder::emit_loop(const Phase& phase, const SyncPlan& plan,
                               const std::vector<std::uint16_t>& ids, std::size_t place,
                               int engine) {
  const Entry& entry = phase.entries()[place];
  const bool begin = entry.kind == Entry::Kind::kLoopBegin;
  Instruction control = semaphore_only(phase);
  control.opcode = begin ? Opcode::kLoop : Opcode::kEndLoop;
  if (begin) control.count = phase.loops()[static_cast<std::size_t>(entry.loop)].count;
  const auto& around = begin ? plan.loop_waits : plan.loop_posts;
  const auto found = around.find({static_cast<int>(place), engine});
  Instruction sync = semaphore_only(phase);
  if (found != around.end()) put(found->second, ids, begin ? add_wait : add_post, sync);
  if (begin && !sync.waits.empty()) queue(engine).push_back(sync);
  queue(engine).push_back(control);
  if (!begin && !sync.updates.empty()) queue(engine).push_back(sync);
}

void ProgramBuilder::end_segment(const std::vector<isa::CommPoint>& then) {
  Instruction last;
  join(before_previous_, last);
  join(previous_, last);
  last.kernel =
      program_.kernels.empty() ? 0 : static_cast<std::uint32_t>(program_.kernels.size() - 1);
  if (!last.waits.empty()) queue(kSync).push_back(last);
  previous_ = {};
  before_previous_ = {};
  // All semaphores are back at 0: a new segment may give them to other waiters.
  next_semaphore_ = kFirstFree;
  for (auto& list : free_) list.clear();
  program_.segments.back().then = then;
  program_.segments.emplace_back();
}

isa::Program ProgramBuilder::finish(const std::vector<isa::CommPoint>& then) {
  end_segment(then);
  program_.segments.pop_back();
  return std::move(program_);
}

}  // namespace trellis::device
