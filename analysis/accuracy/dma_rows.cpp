#include "analysis/accuracy/dma_rows.h"

#include <array>
#include <string>

#include "analysis/accuracy/dma_programs.h"
#include "sim/config/host_copy.h"

namespace trellis::analysis {
namespace {

using sim::KernelSlice;
using sim::SegmentTiming;
using sim::isa::DmaQueue;
using sim::isa::Engine;

constexpr double us(Picoseconds t) { return static_cast<double>(t.value) / 1e6; }
constexpr std::uint8_t track(Engine engine) { return static_cast<std::uint8_t>(engine); }
constexpr std::uint8_t track(DmaQueue queue) {
  return static_cast<std::uint8_t>(sim::isa::kNumEngines + static_cast<int>(queue));
}

Picoseconds duration(const sim::isa::Program& program, sim::Simulator& simulator) {
  Picoseconds sum;
  for (const SegmentTiming& s : simulator.time_program(program).segments) sum += s.duration;
  return sum;
}

const KernelSlice* find(const SegmentTiming& t, std::uint32_t kernel, std::uint8_t track) {
  for (const KernelSlice& slice : t.slices) {
    if (slice.kernel == kernel && slice.track == track) return &slice;
  }
  return nullptr;
}

template <typename E>
E word(const YamlMap& spec, const std::string& key, const std::string& text, E otherwise) {
  if (const auto value = sim::isa::parse_name<E>(text)) return *value;
  spec.problem(key, "unknown word \"" + text + "\"");
  return otherwise;
}

TileLoads read_tiles(const YamlMap& spec) {
  TileLoads loads;
  loads.partitions = spec.get<int>("partitions", 128);
  loads.row_bytes = spec.required<std::int64_t>("row_bytes");
  loads.row_stride_bytes = spec.get<std::int64_t>("row_stride_bytes", 0);
  loads.descriptors =
      word(spec, "descriptors", spec.get<std::string>("descriptors", "default"), loads.descriptors);
  const auto issuers = spec.get<std::vector<std::string>>("issuers", {"sync"});
  loads.issuers.clear();
  for (const std::string& name : issuers)
    loads.issuers.push_back(word(spec, "issuers", name, Engine::kSync));
  return loads;
}

double tiles_us(const YamlMap& spec, sim::Simulator& simulator) {
  TileLoads loads = read_tiles(spec);
  constexpr std::int64_t kMany = 64;
  loads.tiles = kMany;
  const Picoseconds first = duration(tile_loads(loads), simulator);
  loads.tiles = 2 * kMany;
  return us(duration(tile_loads(loads), simulator) - first) / kMany;
}

double engine_us(const YamlMap& spec, sim::Simulator& simulator) {
  const SegmentTiming t = simulator.time_program(tile_loads(read_tiles(spec))).segments.front();
  const KernelSlice* data = find(t, 0, track(DmaQueue::kLoad));
  return data == nullptr ? 0 : us(data->end - data->start);
}

/// The intervals of figures nki-dma-intro-3 and 5, in the order of time.
double timeline_us(const YamlMap& spec, sim::Simulator& simulator) {
  const bool software = spec.get<bool>("software", false);
  const auto name = spec.required<std::string>("interval");
  const SegmentTiming t = simulator
                              .time_program(load_exp_store(spec.required<int>("partitions"),
                                                           spec.required<int>("columns"), software))
                              .segments.front();
  const KernelSlice* trigger = find(t, 0, track(software ? Engine::kGpSimd : Engine::kSync));
  const KernelSlice* load = find(t, 0, track(DmaQueue::kLoad));
  const KernelSlice* exp = find(t, 1, track(Engine::kScalar));
  const KernelSlice* store_trigger = find(t, 2, track(Engine::kGpSimd));
  const KernelSlice* store = find(t, 2, track(DmaQueue::kStore));
  if (trigger == nullptr || load == nullptr || exp == nullptr || store_trigger == nullptr ||
      store == nullptr)
    return 0;
  // With software descriptors the trigger proper comes after GpSimd's work.
  const auto triggered = [software](const KernelSlice& at) { return software ? at.end : at.start; };
  const std::array<std::pair<const char*, Picoseconds>, 8> intervals{{
      {"trigger", trigger->end - trigger->start},
      {"trigger_to_data", load->start - triggered(*trigger)},
      {"load_data", load->end - load->start},
      {"data_to_scalar", exp->start - load->end},
      {"scalar_to_gpsimd", store_trigger->start - exp->start},
      {"store_trigger_to_data", store->start - triggered(*store_trigger)},
      {"store_data", store->end - store->start},
      {"store_data_to_semaphore", t.duration - store->end},
  }};
  for (const auto& [known, interval] : intervals) {
    if (name == known) return us(interval);
  }
  spec.problem("interval", "unknown word \"" + name + "\"");
  return 0;
}

}  // namespace

std::optional<double> dma_row_us(const PublishedRow& row, const sim::SystemConfig& system,
                                 sim::Simulator& simulator) {
  const auto what = row.spec.required<std::string>("what");
  if (what == "tiles") return tiles_us(row.spec, simulator);
  if (what == "engine") return engine_us(row.spec, simulator);
  if (what == "timeline") return timeline_us(row.spec, simulator);
  if (what == "host_copy")
    return us(sim::host_copy_time(Bytes(row.spec.required<std::int64_t>("bytes")), system.chip));
  row.spec.problem("what", "expected tiles, engine, timeline or host_copy, got \"" + what + "\"");
  return std::nullopt;
}

}  // namespace trellis::analysis
