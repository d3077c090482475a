#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "device/compiler/emit/program_builder.h"
#include "device/kernels/builders.h"

/// Kernels that are written tile by tile, as a first exercise is: what transfers and instructions
/// cost by themselves.
namespace trellis::device {
namespace {

using sim::isa::DType;
using sim::isa::Engine;

constexpr std::int64_t kUnrolled =
    16;  ///< tiles whose loads are started before the first one's result is stored

Operands add_operands(const KernelInput& in) {
  const std::int64_t n = in.size("elements");
  return {{"x", {n}, in.dtype}, {"y", {n}, in.dtype}, {"out", {n}, in.dtype, true}};
}

/// Tile i of a vector: `free` elements on each partition.
Ref tile_in_hbm(std::uint32_t buffer, DType dtype, const Index& i, std::int64_t partitions,
                std::int64_t free) {
  return Phase::hbm(buffer, dtype, static_cast<int>(partitions), free, row(free),
                    i * (partitions * free));
}

/// Every transfer is started by Sync: tiles of one step are loaded, added and stored side by side.
BuiltKernel build_tiled_add(const KernelInput& in, const Operands& operands) {
  const std::int64_t n = in.size("elements"), partitions = in.size("partitions"),
                     free = in.size("free");
  if (partitions > 128 || free > n / partitions || n % (partitions * free) != 0) {
    throw ConfigError(fmt::format(
        "tiled_add: tiles of {} x {} must cut {} elements evenly, on at most 128 partitions",
        partitions, free, n));
  }
  const std::int64_t tile = partitions * free, largest = in.core().limits.sbuf_bytes_per_partition /
                                                         (8 * sim::isa::size_bytes(in.dtype));
  if (free > largest)
    throw ConfigError(
        fmt::format("tiled_add.free: expected at most {}, an eighth of a partition of SBUF, got {}",
                    largest, free));
  ProgramBuilder builder("tiled_add", in.core());
  std::vector<std::uint32_t> buffers;
  for (const KernelOperand& o : operands)
    buffers.push_back(
        builder.add_hbm(o.name, o.bytes(), static_cast<std::int32_t>(buffers.size())));
  Phase phase(builder.add_kernel({"tiled_add", 0, n, false}));
  const std::int64_t bytes = free * sim::isa::size_bytes(in.dtype);
  const auto step = [&](const Index& first, std::int64_t tiles) {
    std::vector<std::array<Ref, 3>> parts;
    for (std::int64_t t = 0; t < tiles; ++t) {
      std::array<Ref, 3> part;
      for (Ref& r : part)
        r = phase.at(phase.sbuf(bytes, 2), in.dtype, static_cast<int>(partitions), row(free));
      for (std::size_t i = 0; i < 2; ++i)
        phase.load(part[i], tile_in_hbm(buffers[i], in.dtype, first + Index(t), partitions, free));
      parts.push_back(part);
    }
    for (const auto& part : parts)
      phase.tensor_tensor(sim::isa::AluOp::kAdd, part[2], part[0], part[1]);
    for (std::int64_t t = 0; t < tiles; ++t) {
      phase
          .emit(Engine::kSync, sim::isa::Opcode::kDma,
                tile_in_hbm(buffers[2], in.dtype, first + Index(t), partitions, free),
                parts[static_cast<std::size_t>(t)][2])
          .dma_queue = sim::isa::DmaQueue::kStore;
    }
  };
  const std::int64_t tiles = n / tile,
                     unrolled =
                         std::min(kUnrolled,
                                  std::max<std::int64_t>(
                                      1, in.core().limits.sbuf_bytes_per_partition / (8 * bytes)));
  phase.loop(tiles / unrolled, [&](const Index& i) { step(i * unrolled, unrolled); });
  if (tiles % unrolled != 0)
    phase.scope([&] { step(tiles / unrolled * unrolled, tiles % unrolled); });
  builder.append(std::move(phase));
  return {builder.finish(), n, {}};
}

Operands load_operands(const KernelInput& in) {
  return {{"x", {in.size("tiles"), 128, in.size("columns")}, in.dtype}};
}

/// Loads tiles of 128 rows and does nothing with them.
BuiltKernel build_load(const KernelInput& in, const Operands& operands) {
  const std::int64_t columns = in.size("columns");
  ProgramBuilder builder("load", in.core());
  const std::uint32_t x = builder.add_hbm("x", operands[0].bytes(), 0);
  Phase phase(builder.add_kernel({"load", 0, 0, false}));
  const std::int64_t bytes = columns * sim::isa::size_bytes(in.dtype),
                     slots = in.core().limits.sbuf_bytes_per_partition / 2 / bytes;
  if (slots < 1)
    throw ConfigError(fmt::format(
        "load: a row of {} columns does not fit in half of a partition of SBUF", columns));
  // Sync and Scalar have a descriptor generator each.
  const auto load = [&](Engine engine, const Index& t) {
    const Ref tile =
        phase.at(phase.sbuf(bytes, static_cast<int>(std::clamp<std::int64_t>(slots / 2, 1, 16))),
                 in.dtype, 128, row(columns));
    phase.emit(engine, sim::isa::Opcode::kDma, tile, tile_in_hbm(x, in.dtype, t, 128, columns))
        .dma_queue = sim::isa::DmaQueue::kLoad;
  };
  phase.loop(in.size("tiles") / 2, [&](const Index& i) {
    load(Engine::kSync, i * 2);
    load(Engine::kScalar, i * 2 + Index(1));
  });
  if (in.size("tiles") % 2 == 1) load(Engine::kSync, in.size("tiles") - 1);
  builder.append(std::move(phase));
  return {builder.finish(), 0, {}};
}

}  // namespace

std::vector<KernelSpec> tile_kernels() {
  return {
      {"tiled_add",
       "out = x + y, tile by tile",
       "what one transfer and one instruction cost: try tiles of 1 x 1",
       {{"elements", 25600, "of each operand"},
        {"partitions", 128, "rows of a tile, at most 128"},
        {"free", 200, "columns of a tile"}},
       {DType::kFp32, DType::kBf16},
       {},
       {"elements"},
       add_operands,
       build_tiled_add},
      {"load",
       "128 x columns, tiles times, HBM to SBUF",
       "the DMA engines' rate by descriptor size",
       {{"tiles", 1024, "transfers"}, {"columns", 2048, "elements of a row, one descriptor each"}},
       {DType::kBf16, DType::kFp32},
       {},
       {"tiles"},
       load_operands,
       build_load},
  };
}

}  // namespace trellis::device
