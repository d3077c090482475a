#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/compiler/emit/index.h"
#include "sim/isa/program.h"

/// A phase is one kernel's code as a single sequential thread of instructions with loops: easy to
/// write and to reason about. ProgramBuilder turns it into five queues that run side by side (see
/// sync.h for how the order is kept).
namespace trellis::device {

namespace isa = sim::isa;

/// An on-chip buffer of a phase: all 128 partitions from 0, `bytes` per partition, `depth` ring
/// slots.
struct Tile {
  isa::MemorySpace space = isa::MemorySpace::kSbuf;
  std::int64_t slot_bytes = 0;  ///< per partition, one ring slot
  int depth = 1;
  int home = 0;               ///< loop in whose body it was made: one generation per iteration
  bool scattered = false;     ///< writes between two reads go to different elements: they need no
                              ///< order among themselves
  bool by_parity = false;     ///< ring slot chosen by the parity loop `home`, not by rotation
  std::uint32_t address = 0;  ///< relative to the phase's arena
  std::vector<int> entries;   ///< instructions that touch it, in order
  std::vector<bool> writes;   ///< per entry
};

using TileId = std::uint32_t;

/// An access pattern whose offset is still affine in loop ids and whose buffer may still be a tile.
struct Ref {
  isa::AccessPattern pattern;
  Index index;
  TileId tile = isa::kNone;   ///< kNone: HBM, pattern.buffer is final
  TileId order = isa::kNone;  ///< HBM: of Phase::ordered, when accesses keep their order
};

/// One element of the sequential code.
struct Entry {
  enum class Kind : std::uint8_t { kInstruction, kLoopBegin, kLoopEnd };
  Kind kind = Kind::kInstruction;
  isa::Engine engine = isa::Engine::kSync;
  int loop = 0;  ///< instruction: innermost loop around it; begin/end: the loop itself
  isa::Instruction instruction;
  std::array<Ref, 4> refs;  ///< dst, src0, src1, dst1
};

struct Loop {
  int parent = -1;
  int depth = 0;  ///< root 0
  std::int64_t count = 1;
  int begin = -1, end = -1;  ///< entries
  bool parity = false;
};

using Dims = std::vector<isa::Dim>;

class Phase {
 public:
  explicit Phase(std::uint32_t kernel);

  /// Gives back the tiles made in `body` at its end. Loop bodies are scopes too.
  template <typename Body>
  void scope(Body body) {
    marks_.emplace_back(sbuf_top_, psum_top_);
    body();
    std::tie(sbuf_top_, psum_top_) = marks_.back();
    marks_.pop_back();
  }

  /// Runs `body(Index)` once, inside a loop when count > 1.
  template <typename Body>
  void loop(std::int64_t count, Body body) {
    if (count <= 0) return;
    if (count == 1) return scope([&] { body(Index(0)); });
    const int id = open_loop(count, false);
    body(Index::counter(id));
    close_loop(id);
  }

  /// As loop, but tiles of depth 2 made in the body alternate between two slots even when nested
  /// loops use them.
  template <typename Body>
  void double_buffered_loop(std::int64_t count, Body body) {
    if (count < 2) return loop(count, body);
    loop(count / 2, [&](Index pair) {
      const int id = open_loop(2, true);
      body(pair * 2 + Index::counter(id));
      close_loop(id);
    });
    if (count % 2 == 1) scope([&] { body(Index(count - 1)); });
  }

  /// Cuts `extent` into tiles: body(offset, size) for the full ones in a loop, then for the rest.
  template <typename Body>
  void tiles(std::int64_t extent, std::int64_t size, Body body) {
    loop(extent / size, [&](Index i) { body(i * size, size); });
    if (extent % size != 0) scope([&] { body(Index(extent / size * size), extent % size); });
  }
  template <typename Body>
  void double_buffered_tiles(std::int64_t extent, std::int64_t size, Body body) {
    double_buffered_loop(extent / size, [&](Index i) { body(i * size, size); });
    if (extent % size != 0) scope([&] { body(Index(extent / size * size), extent % size); });
  }

  TileId sbuf(std::int64_t bytes_per_partition, int depth = 1);
  /// Room for rings of inner loops that must not share memory with what comes after them: a ring in
  /// it can be filled ahead.
  struct Region {
    std::int64_t address = 0, bytes = 0;
  };
  Region reserve(std::int64_t bytes_per_partition);
  TileId sbuf_in(const Region& region, std::int64_t bytes_per_partition, int depth);
  /// Promises that between two reads of the tile no element is written twice, so that several
  /// engines may fill it side by side.
  void scatter(TileId tile) { tiles_[tile].scattered = true; }
  /// One bank (2 KiB per partition) per slot.
  TileId psum(int depth = 1);
  Region reserve_psum(int banks);
  /// Slots from bank `first` of a region on.
  TileId psum_in(const Region& region, int first, int depth);
  /// A tile at an address of the phase's arena that the caller has chosen.
  TileId placed(isa::MemorySpace space, std::int64_t address, std::int64_t slot_bytes, int depth);
  /// For an HBM buffer that the phase writes and reads again: what `Ref::order` of its operands
  /// names.
  TileId ordered(std::uint32_t buffer);

  [[nodiscard]] Ref at(TileId tile, isa::DType dtype, int partitions, Dims dims,
                       Index offset = 0) const;
  [[nodiscard]] static Ref hbm(std::uint32_t buffer, isa::DType dtype, int partitions,
                               std::int64_t partition_stride, const Dims& dims, Index offset);

  isa::Instruction& emit(isa::Engine engine, isa::Opcode opcode, const Ref& dst,
                         const Ref& src0 = {}, const Ref& src1 = {});

  // the instructions that every lowering uses
  void load(const Ref& dst, const Ref& src);   ///< HBM → SBUF, started by Sync
  void store(const Ref& dst, const Ref& src);  ///< SBUF → HBM, started by GpSimd
  void matmul(const Ref& dst, const Ref& stationary, const Ref& moving, bool accumulate,
              bool overwrite_first = false, isa::MatmulMode mode = isa::MatmulMode::kDense);
  void transpose(const Ref& dst, const Ref& src);
  void copy(isa::Engine engine, const Ref& dst, const Ref& src);
  void tensor_tensor(isa::AluOp alu, const Ref& dst, const Ref& a, const Ref& b);
  void tensor_scalar(const Ref& dst, const Ref& a, isa::AluOp alu, double imm0,
                     isa::AluOp alu2 = isa::AluOp::kNone, double imm1 = 0,
                     isa::Engine engine = isa::Engine::kVector);
  void tensor_column(const Ref& dst, const Ref& a, isa::AluOp alu, const Ref& column,
                     isa::AluOp alu2 = isa::AluOp::kNone, double imm1 = 0,
                     isa::Engine engine = isa::Engine::kVector);
  void activation(isa::Activation fn, const Ref& dst, const Ref& a, double scale = 1,
                  double bias = 0);
  void activation_column(isa::Activation fn, const Ref& dst, const Ref& a, double scale,
                         const Ref& bias);
  /// The last instruction, an activation or a tensor_scalar, also leaves the sums of its rows in
  /// `sum` [P, 1].
  void sum_rows_into(const Ref& sum);
  /// dst [P, N] packed and scales [⌈P / 8⌉, N] of a [P, 4 · N].
  void quantize_mx(const Ref& dst, const Ref& scales, const Ref& a);
  isa::Instruction& reduce(isa::AluOp alu, const Ref& dst, const Ref& a, bool accumulate = false);
  void memset(const Ref& dst, double value);

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] std::vector<Entry>& entries() { return entries_; }
  [[nodiscard]] const std::vector<Loop>& loops() const { return loops_; }
  [[nodiscard]] std::vector<Tile>& tile_list() { return tiles_; }
  [[nodiscard]] const std::vector<Tile>& tile_list() const { return tiles_; }
  [[nodiscard]] std::uint32_t kernel() const { return kernel_; }
  [[nodiscard]] std::int64_t sbuf_bytes() const { return sbuf_peak_; }
  [[nodiscard]] std::int64_t psum_bytes() const { return psum_peak_; }

  /// Decides ring slots and turns every Index into loop strides. Called once, when the code is
  /// complete.
  void resolve();

 private:
  int open_loop(std::int64_t count, bool parity);
  void close_loop(int id);
  TileId make_tile(isa::MemorySpace space, std::int64_t slot_bytes, int depth,
                   std::int64_t address);
  void note_access(TileId tile, bool write);
  void second_result(const Ref& dst);  ///< of the last instruction
  void resolve_ref(const Entry& entry, Ref& ref) const;

  std::uint32_t kernel_;
  std::vector<Entry> entries_;
  std::vector<Loop> loops_;
  std::vector<Tile> tiles_;
  int current_ = 0;
  std::int64_t sbuf_top_ = 0, sbuf_peak_ = 0, psum_top_ = 0, psum_peak_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>>
      marks_;  ///< arena tops at the open of each loop
};

[[nodiscard]] inline Dims row(std::int64_t count) {
  return {{1, static_cast<std::int32_t>(count)}};
}
/// A [P, 1] column read as [P, count].
[[nodiscard]] inline Dims repeated(std::int64_t count) {
  return {{0, static_cast<std::int32_t>(count)}};
}

}  // namespace trellis::device
