#include "sim/functional/hazards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace trellis::sim::functional {

using isa::AccessPattern;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;

namespace {

constexpr std::size_t kMostReported = 64;

void join(Clock& to, const Clock& from) {
  for (std::size_t a = 0; a < to.size(); ++a) to[a] = std::max(to[a], from[a]);
}

std::optional<std::int64_t> common_byte(
    const std::vector<std::pair<std::int64_t, std::int64_t>>& a,
    const std::vector<std::pair<std::int64_t, std::int64_t>>& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t begin = std::max(a[i].first, b[j].first);
    if (begin < std::min(a[i].second, b[j].second)) return begin;
    a[i].second <= b[j].second ? ++i : ++j;
  }
  return std::nullopt;
}

/// Sorts runs and joins those that touch.
void normalise(std::vector<std::pair<std::int64_t, std::int64_t>>& runs) {
  std::sort(runs.begin(), runs.end());
  std::size_t last = 0;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first <= runs[last].second) {
      runs[last].second = std::max(runs[last].second, runs[i].second);
    } else {
      runs[++last] = runs[i];
    }
  }
  runs.resize(last + 1);
}

/// The bytes of a pattern's free dimensions, from its first element.
std::vector<std::pair<std::int64_t, std::int64_t>> free_runs(const AccessPattern& a) {
  const std::int64_t size = isa::size_bytes(a.dtype);
  std::vector<std::pair<std::int64_t, std::int64_t>> runs{{0, size}};
  for (int d = a.num_dims - 1; d >= 0; --d) {
    const auto [stride, count] = a.dims[static_cast<std::size_t>(d)];
    if (stride == 0 || count == 1) continue;
    const auto inner = runs;
    runs.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      for (const auto& [begin, end] : inner)
        runs.emplace_back(begin + i * stride * size, end + i * stride * size);
    }
    normalise(runs);
  }
  return runs;
}

/// The runs once at each of `rows`, offsets in elements.
std::vector<std::pair<std::int64_t, std::int64_t>> repeated(
    const std::vector<std::pair<std::int64_t, std::int64_t>>& runs,
    const std::vector<std::int64_t>& rows, std::int64_t size) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (const std::int64_t row : rows) {
    for (const auto& [begin, end] : runs) out.emplace_back(begin + row * size, end + row * size);
  }
  normalise(out);
  return out;
}

}  // namespace

HazardFinder::HazardFinder(const isa::Program& program, const isa::Limits& limits)
    : program_(program),
      clocks_(kActors, Clock{}),
      finished_(isa::kNumEngines),
      pending_(kActors),
      units_(static_cast<std::size_t>(limits.semaphores)) {
  const auto room = [&](Region& region, std::int64_t row, std::int64_t rows) {
    region.row = row;
    region.written.assign(static_cast<std::size_t>(row * rows), 0);
  };
  room(sbuf_, limits.sbuf_bytes_per_partition, limits.partitions);
  room(psum_, limits.psum_bytes_per_partition, limits.partitions);
  hbm_.resize(program.buffers.size());
  for (std::size_t b = 0; b < hbm_.size(); ++b)
    room(hbm_[b], program.buffers[b].space == MemorySpace::kHbm ? program.buffers[b].bytes : 0, 1);
}

void HazardFinder::begin_segment(std::size_t segment) {
  segment_ = segment;
  Clock all{};
  for (const Clock& clock : clocks_) functional::join(all, clock);
  clocks_.assign(kActors, all);
  finished_.assign(isa::kNumEngines, false);
  for (auto& units : units_) units.clear();
  sbuf_.accesses.clear();
  psum_.accesses.clear();
  for (Region& region : hbm_) region.accesses.clear();
}

void HazardFinder::mark_written(std::uint32_t buffer) {
  auto& written = hbm_.at(buffer).written;
  std::fill(written.begin(), written.end(), 1);
}

void HazardFinder::wait(int actor, const Instruction& instruction) {
  for (const auto& wait : instruction.waits) {
    auto& units = units_[wait.id];
    for (std::uint32_t left = wait.value; left > 0;) {
      Unit& oldest = units.front();
      functional::join(clocks_[static_cast<std::size_t>(actor)], oldest.clock);
      const std::uint32_t taken = std::min(left, oldest.count);
      left -= taken;
      if ((oldest.count -= taken) == 0) units.pop_front();
    }
  }
}

void HazardFinder::post(int actor, const Instruction& instruction) {
  for (const auto& update : instruction.updates)
    units_[update.id].push_back({update.value, clocks_[static_cast<std::size_t>(actor)]});
}

void HazardFinder::issue(int engine, int ring) {
  pending_[static_cast<std::size_t>(ring)].push_back(clocks_[static_cast<std::size_t>(engine)]);
}

void HazardFinder::start(int ring) {
  auto& pending = pending_[static_cast<std::size_t>(ring)];
  functional::join(clocks_[static_cast<std::size_t>(ring)], pending.front());
  pending.pop_front();
}

HazardFinder::Region& HazardFinder::region(std::uint32_t buffer) {
  switch (program_.buffers.at(buffer).space) {
    case MemorySpace::kSbuf: return sbuf_;
    case MemorySpace::kPsum: return psum_;
    case MemorySpace::kHbm: break;
  }
  return hbm_[buffer];
}

HazardFinder::Access HazardFinder::touched(int actor, Site site, const AccessPattern& a, bool write,
                                           const Reach& reach) const {
  const auto& buffer = program_.buffers.at(a.buffer);
  Access access{
      site,  actor, clocks_[static_cast<std::size_t>(actor)][static_cast<std::size_t>(actor)],
      write, 0,     0,
      {}};
  if (reach.whole) {
    access.runs = {{0, buffer.bytes}};
    return access;
  }
  access.runs = free_runs(a);
  const std::int64_t size = isa::size_bytes(a.dtype);
  if (reach.rows != nullptr) access.runs = repeated(access.runs, *reach.rows, size);
  std::int64_t shift = a.offset * size;
  if (buffer.space == MemorySpace::kHbm) {
    const auto inner = access.runs;
    access.runs.clear();
    for (std::int64_t p = 0; p < a.num_partitions; ++p) {
      for (const auto& [begin, end] : inner)
        access.runs.emplace_back(begin + p * a.partition_stride * size,
                                 end + p * a.partition_stride * size);
    }
    normalise(access.runs);
  } else {
    shift += buffer.address;
    access.first_partition = a.start_partition;
    access.last_partition = a.start_partition + a.num_partitions - 1;
  }
  for (auto& [begin, end] : access.runs) begin += shift, end += shift;
  return access;
}

void HazardFinder::find_races(Region& region, const Access& access, std::uint32_t buffer) {
  const Clock& now = clocks_[static_cast<std::size_t>(access.actor)];
  for (const Access& earlier : region.accesses) {
    if (!earlier.write && !access.write) continue;
    if (now[static_cast<std::size_t>(earlier.actor)] >= earlier.moment) continue;
    const std::int64_t partition = std::max(earlier.first_partition, access.first_partition);
    if (partition > std::min(earlier.last_partition, access.last_partition)) continue;
    if (const auto byte = common_byte(earlier.runs, access.runs))
      report(HazardKind::kRace, earlier, access, buffer, partition, *byte);
  }
}

void HazardFinder::find_unwritten(const Region& region, const Access& access,
                                  std::uint32_t buffer) {
  for (std::int64_t p = access.first_partition; p <= access.last_partition; ++p) {
    for (const auto& [begin, end] : access.runs) {
      const std::uint8_t* first = region.written.data() + p * region.row + begin;
      const void* hole = std::memchr(first, 0, static_cast<std::size_t>(end - begin));
      if (hole == nullptr) continue;
      return report(HazardKind::kUnwritten, access, access, buffer, p,
                    begin + (static_cast<const std::uint8_t*>(hole) - first));
    }
  }
}

void HazardFinder::prune(Region& region) const {
  // An access that every actor knows of cannot race any more.
  Clock known;
  known.fill(0xffffffffu);
  const auto meet = [&known](const Clock& clock) {
    for (std::size_t a = 0; a < known.size(); ++a) known[a] = std::min(known[a], clock[a]);
  };
  for (std::size_t e = 0; e < isa::kNumEngines; ++e) {
    if (!finished_[e]) meet(clocks_[e]);
  }
  for (const auto& pending : pending_) {
    if (!pending.empty()) meet(pending.front());
  }
  std::erase_if(region.accesses, [&known](const Access& access) {
    return known[static_cast<std::size_t>(access.actor)] >= access.moment;
  });
  region.prune_at = std::max<std::size_t>(64, 2 * region.accesses.size());
}

void HazardFinder::read(int actor, Site site, const AccessPattern& a, const Reach& reach) {
  if (!a.present()) return;
  Access access = touched(actor, site, a, false, reach);
  Region& region = this->region(a.buffer);
  find_races(region, access, a.buffer);
  if (!reach.whole) find_unwritten(region, access, a.buffer);
  region.accesses.push_back(std::move(access));
}

void HazardFinder::write(int actor, Site site, const AccessPattern& a, const Reach& reach) {
  if (!a.present()) return;
  Access access = touched(actor, site, a, true, reach);
  Region& region = this->region(a.buffer);
  find_races(region, access, a.buffer);
  for (std::int64_t p = access.first_partition; p <= access.last_partition && !reach.whole; ++p) {
    for (const auto& [begin, end] : access.runs)
      std::memset(region.written.data() + p * region.row + begin, 1,
                  static_cast<std::size_t>(end - begin));
  }
  if (region.accesses.size() >= region.prune_at) prune(region);
  region.accesses.push_back(std::move(access));
}

void HazardFinder::access(int actor, Site site, const Instruction& i,
                          const std::vector<std::int64_t>& rows) {
  ++clocks_[static_cast<std::size_t>(actor)][static_cast<std::size_t>(actor)];
  if (i.opcode == Opcode::kGeneric || i.opcode == Opcode::kLoadTable) return;
  const bool scatter = i.opcode == Opcode::kDmaScatterAdd;
  const Reach all, named{false, &rows}, displaced{true, nullptr};
  read(actor, site, i.src0,
       i.opcode == Opcode::kDmaGather           ? named
       : i.opcode == Opcode::kTensorCopyDynamic ? displaced
                                                : all);
  read(actor, site, i.src1, all);
  if (scatter) read(actor, site, i.dst, named);
  if (i.accumulate) read(actor, site, i.dst1.present() ? i.dst1 : i.dst, all);
  write(actor, site, i.dst, scatter ? named : all);
  write(actor, site, i.dst1, all);
}

void HazardFinder::report(HazardKind kind, const Access& first, const Access& second,
                          std::uint32_t buffer, std::int64_t partition, std::int64_t byte) {
  if (found_.size() >= kMostReported) return;
  for (const Hazard& hazard : found_) {
    if (hazard.kind == kind && hazard.first == first.site && hazard.second == second.site) return;
  }
  const auto words = [this](const Access& access) {
    const auto& instruction =
        program_.segments[access.site.segment]
            .queues[static_cast<std::size_t>(access.site.engine)][access.site.index];
    return fmt::format("{} {} ({}) {}", name(access.site.engine), access.site.index,
                       name(instruction.opcode), access.write ? "writes" : "reads");
  };
  const auto& where = program_.buffers.at(buffer);
  const std::string place = where.space == MemorySpace::kHbm
                                ? fmt::format("byte {} of HBM buffer {}", byte, where.name)
                                : fmt::format("byte {} of partition {} of {} ({})", byte, partition,
                                              name(where.space), where.name);
  const std::string text =
      kind == HazardKind::kRace
          ? fmt::format("segment {}: {} {} that {}, and no semaphore orders them", segment_,
                        words(second), place, words(first))
          : fmt::format("segment {}: {} {}, which was never written", segment_, words(second),
                        place);
  found_.push_back({kind, first.site, second.site, buffer, partition, byte, text});
}

}  // namespace trellis::sim::functional
