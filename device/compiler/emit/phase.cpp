#include "device/compiler/emit/phase.h"

#include <algorithm>

namespace trellis::device {

using isa::AluOp;
using isa::Engine;
using isa::MemorySpace;
using isa::Opcode;

namespace {
constexpr std::int64_t kPsumBank = 2048;
constexpr std::int64_t kAlignment = 64;
}  // namespace

Phase::Phase(std::uint32_t kernel) : kernel_(kernel), loops_(1) {}

int Phase::open_loop(std::int64_t count, bool parity) {
  const int id = static_cast<int>(loops_.size());
  loops_.push_back(
      {current_, loops_[current_].depth + 1, count, static_cast<int>(entries_.size()), -1, parity});
  Entry entry;
  entry.kind = Entry::Kind::kLoopBegin;
  entry.loop = id;
  entries_.push_back(entry);
  current_ = id;
  marks_.emplace_back(sbuf_top_, psum_top_);
  TRELLIS_CHECK(loops_[id].depth <= isa::kMaxLoopDepth, "a lowering nests loops too deeply");
  return id;
}

void Phase::close_loop(int id) {
  Entry entry;
  entry.kind = Entry::Kind::kLoopEnd;
  entry.loop = id;
  loops_[id].end = static_cast<int>(entries_.size());
  entries_.push_back(entry);
  current_ = loops_[id].parent;
  std::tie(sbuf_top_, psum_top_) = marks_.back();
  marks_.pop_back();
}

TileId Phase::make_tile(MemorySpace space, std::int64_t slot_bytes, int depth,
                        std::int64_t address) {
  Tile tile;
  tile.space = space;
  tile.slot_bytes = slot_bytes;
  tile.depth = current_ == 0 ? 1 : depth;
  tile.home = current_;
  tile.by_parity = loops_[current_].parity && depth == 2;
  tile.address = static_cast<std::uint32_t>(address);
  tiles_.push_back(std::move(tile));
  return static_cast<TileId>(tiles_.size() - 1);
}

namespace {
std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

TileId Phase::sbuf(std::int64_t bytes_per_partition, int depth) {
  const std::int64_t slot = aligned(bytes_per_partition);
  const TileId id = make_tile(MemorySpace::kSbuf, slot, depth, sbuf_top_);
  sbuf_top_ += slot * tiles_[id].depth;
  sbuf_peak_ = std::max(sbuf_peak_, sbuf_top_);
  return id;
}

Phase::Region Phase::reserve(std::int64_t bytes_per_partition) {
  const Region region{sbuf_top_, aligned(bytes_per_partition)};
  sbuf_top_ += region.bytes;
  sbuf_peak_ = std::max(sbuf_peak_, sbuf_top_);
  return region;
}

TileId Phase::sbuf_in(const Region& region, std::int64_t bytes_per_partition, int depth) {
  const std::int64_t slot = aligned(bytes_per_partition);
  return make_tile(MemorySpace::kSbuf, slot,
                   static_cast<int>(std::clamp<std::int64_t>(region.bytes / slot, 1, depth)),
                   region.address);
}

TileId Phase::psum(int depth) {
  const TileId id = make_tile(MemorySpace::kPsum, kPsumBank, depth, psum_top_);
  psum_top_ += kPsumBank * tiles_[id].depth;
  psum_peak_ = std::max(psum_peak_, psum_top_);
  return id;
}

Phase::Region Phase::reserve_psum(int banks) {
  const Region region{psum_top_, kPsumBank * banks};
  psum_top_ += region.bytes;
  psum_peak_ = std::max(psum_peak_, psum_top_);
  return region;
}

TileId Phase::psum_in(const Region& region, int first, int depth) {
  const auto room = static_cast<int>(region.bytes / kPsumBank) - first;
  return make_tile(MemorySpace::kPsum, kPsumBank, std::min(depth, room),
                   region.address + first * kPsumBank);
}

TileId Phase::placed(MemorySpace space, std::int64_t address, std::int64_t slot_bytes, int depth) {
  const TileId id = make_tile(space, slot_bytes, depth, address);
  std::int64_t& peak = space == MemorySpace::kSbuf ? sbuf_peak_ : psum_peak_;
  peak = std::max(peak, address + slot_bytes * depth);
  return id;
}

TileId Phase::ordered(std::uint32_t buffer) { return make_tile(MemorySpace::kHbm, 1, 1, buffer); }

Ref Phase::at(TileId tile, isa::DType dtype, int partitions, Dims dims, Index offset) const {
  Ref ref;
  ref.tile = tile;
  ref.pattern.dtype = dtype;
  ref.pattern.num_partitions = static_cast<std::uint16_t>(partitions);
  std::erase_if(dims, [](const isa::Dim& d) { return d.count == 1; });
  if (dims.empty()) dims = row(1);
  TRELLIS_CHECK(dims.size() <= isa::kMaxFreeDims,
                "a tile operand has more free dimensions than an access pattern");
  ref.pattern.num_dims = static_cast<std::uint8_t>(dims.size());
  std::copy(dims.begin(), dims.end(), ref.pattern.dims.begin());
  ref.index = std::move(offset);
  return ref;
}

Ref Phase::hbm(std::uint32_t buffer, isa::DType dtype, int partitions,
               std::int64_t partition_stride, const Dims& dims, Index offset) {
  Ref ref;
  ref.pattern.buffer = buffer;
  ref.pattern.dtype = dtype;
  ref.pattern.num_partitions = static_cast<std::uint16_t>(partitions);
  ref.pattern.partition_stride = partition_stride;
  int n = 0;
  for (const isa::Dim& dim : dims) {
    if (dim.count == 1) continue;
    TRELLIS_CHECK(n < isa::kMaxFreeDims,
                  "an HBM operand has more free dimensions than an access pattern");
    ref.pattern.dims[static_cast<std::size_t>(n++)] = dim;
  }
  if (n == 0) ref.pattern.dims[static_cast<std::size_t>(n++)] = {1, 1};
  ref.pattern.num_dims = static_cast<std::uint8_t>(n);
  ref.index = std::move(offset);
  return ref;
}

void Phase::note_access(TileId tile, bool write) {
  if (tile == isa::kNone) return;
  Tile& t = tiles_[tile];
  const int entry = static_cast<int>(entries_.size()) - 1;
  if (!t.entries.empty() && t.entries.back() == entry) {
    t.writes.back() = t.writes.back() || write;
    return;
  }
  t.entries.push_back(entry);
  t.writes.push_back(write);
}

isa::Instruction& Phase::emit(Engine engine, Opcode opcode, const Ref& dst, const Ref& src0,
                              const Ref& src1) {
  Entry entry;
  entry.engine = engine;
  entry.loop = current_;
  entry.instruction.opcode = opcode;
  entry.instruction.kernel = kernel_;
  entry.refs = {dst, src0, src1, {}};
  entries_.push_back(std::move(entry));
  const auto ordered = [](const Ref& ref) { return ref.tile == isa::kNone ? ref.order : ref.tile; };
  note_access(ordered(dst), true);
  note_access(ordered(src0), false);
  note_access(ordered(src1), false);
  return entries_.back().instruction;
}

void Phase::load(const Ref& dst, const Ref& src) {
  emit(Engine::kSync, Opcode::kDma, dst, src).dma_queue = isa::DmaQueue::kLoad;
}
void Phase::store(const Ref& dst, const Ref& src) {
  emit(Engine::kGpSimd, Opcode::kDma, dst, src).dma_queue = isa::DmaQueue::kStore;
}

void Phase::matmul(const Ref& dst, const Ref& stationary, const Ref& moving, bool accumulate,
                   bool overwrite_first, isa::MatmulMode mode) {
  emit(Engine::kTensor, Opcode::kLoadStationary, {}, stationary).mode = mode;
  auto& instruction = emit(Engine::kTensor, Opcode::kMatmul, dst, moving);
  instruction.accumulate = accumulate;
  instruction.overwrite_first = overwrite_first;
  instruction.mode = mode;
}

void Phase::transpose(const Ref& dst, const Ref& src) {
  emit(Engine::kTensor, Opcode::kTranspose, dst, src);
}
void Phase::copy(Engine engine, const Ref& dst, const Ref& src) {
  emit(engine, Opcode::kTensorCopy, dst, src);
}

void Phase::tensor_tensor(AluOp alu, const Ref& dst, const Ref& a, const Ref& b) {
  emit(Engine::kVector, Opcode::kTensorTensor, dst, a, b).alu = alu;
}

void Phase::tensor_scalar(const Ref& dst, const Ref& a, AluOp alu, double imm0, AluOp alu2,
                          double imm1, Engine engine) {
  auto& instruction = emit(engine, Opcode::kTensorScalar, dst, a);
  instruction.alu = alu;
  instruction.alu2 = alu2;
  instruction.imm0 = imm0;
  instruction.imm1 = imm1;
}

void Phase::tensor_column(const Ref& dst, const Ref& a, AluOp alu, const Ref& column, AluOp alu2,
                          double imm1, Engine engine) {
  auto& instruction = emit(engine, Opcode::kTensorScalar, dst, a, column);
  instruction.alu = alu;
  instruction.alu2 = alu2;
  instruction.imm1 = imm1;
}

void Phase::activation(isa::Activation fn, const Ref& dst, const Ref& a, double scale,
                       double bias) {
  auto& instruction = emit(Engine::kScalar, Opcode::kActivation, dst, a);
  instruction.activation = fn;
  instruction.imm0 = scale;
  instruction.imm1 = bias;
}

void Phase::activation_column(isa::Activation fn, const Ref& dst, const Ref& a, double scale,
                              const Ref& bias) {
  auto& instruction = emit(Engine::kScalar, Opcode::kActivation, dst, a, bias);
  instruction.activation = fn;
  instruction.imm0 = scale;
}

void Phase::second_result(const Ref& dst) {
  entries_.back().refs[3] = dst;
  note_access(dst.tile, true);
}

void Phase::sum_rows_into(const Ref& sum) { second_result(sum); }

void Phase::quantize_mx(const Ref& dst, const Ref& scales, const Ref& a) {
  emit(Engine::kVector, Opcode::kQuantizeMx, dst, a);
  second_result(scales);
}

isa::Instruction& Phase::reduce(AluOp alu, const Ref& dst, const Ref& a, bool accumulate) {
  auto& instruction = emit(Engine::kVector, Opcode::kTensorReduce, dst, a);
  instruction.alu = alu;
  instruction.accumulate = accumulate;
  return instruction;
}

void Phase::memset(const Ref& dst, double value) {
  emit(Engine::kVector, Opcode::kMemset, dst).imm0 = value;
}

void Phase::resolve_ref(const Entry& entry, Ref& ref) const {
  if (ref.tile == isa::kNone && !ref.pattern.present()) return;
  Index index = ref.index;
  if (ref.tile != isa::kNone) {
    const Tile& tile = tiles_[ref.tile];
    const std::int64_t slot = tile.slot_bytes / isa::size_bytes(ref.pattern.dtype);
    if (tile.by_parity) {
      index = index + Index::counter(tile.home) * slot;
    } else if (tile.depth > 1) {
      ref.pattern.rotate_count = static_cast<std::uint16_t>(tile.depth);
      ref.pattern.rotate_stride = slot;
    }
  }
  ref.pattern.offset = index.base;
  for (const auto& term : index.terms) {
    int loop = entry.loop;
    while (loop > 0 && loop != term.loop) loop = loops_[loop].parent;
    TRELLIS_CHECK(loop == term.loop, "an operand depends on a loop that is not around it");
    ref.pattern.loop_stride[static_cast<std::size_t>(loops_[loop].depth - 1)] += term.stride;
  }
}

void Phase::resolve() {
  for (Tile& tile : tiles_) {
    // Rotation counts executions, so it needs every access once per generation.
    const bool direct = std::all_of(tile.entries.begin(), tile.entries.end(),
                                    [&](int e) { return entries_[e].loop == tile.home; });
    if (!tile.by_parity && !direct) tile.depth = 1;
  }
  for (Entry& entry : entries_) {
    if (entry.kind != Entry::Kind::kInstruction) continue;
    for (Ref& ref : entry.refs) resolve_ref(entry, ref);
    entry.instruction.dst = entry.refs[0].pattern;
    entry.instruction.src0 = entry.refs[1].pattern;
    entry.instruction.src1 = entry.refs[2].pattern;
    entry.instruction.dst1 = entry.refs[3].pattern;
  }
}

}  // namespace trellis::device
