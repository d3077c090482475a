#include "sim/functional/interpreter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sim/functional/tiles.h"

namespace trellis::sim::functional {
namespace {

using isa::AccessPattern;
using isa::Engine;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;

isa::Limits limits() {
  isa::Limits limits;
  limits.sbuf_bytes_per_partition = 64 * 1024;
  return limits;
}

/// Programs over one HBM buffer, `rows` × `columns` fp32, and tiles of SBUF and PSUM.
class Writer {
 public:
  Writer() { program_.segments.resize(1); }

  std::uint32_t hbm(const std::string& name, std::int64_t bytes) {
    isa::Buffer buffer{.space = MemorySpace::kHbm, .name = name, .bytes = bytes};
    buffer.slot = static_cast<std::int32_t>(program_.buffers.size());
    return add(buffer);
  }
  std::uint32_t tile(const std::string& name, std::uint32_t bytes, std::uint32_t address,
                     MemorySpace space = MemorySpace::kSbuf) {
    return add({.space = space,
                .name = name,
                .num_partitions = 128,
                .bytes_per_partition = bytes,
                .address = address});
  }
  AccessPattern rows(std::uint32_t buffer, std::uint16_t partitions, std::int32_t columns,
                     DType dtype = DType::kFp32) const {
    AccessPattern a{.buffer = buffer, .dtype = dtype, .num_partitions = partitions};
    if (program_.buffers[buffer].space == MemorySpace::kHbm) a.partition_stride = columns;
    a.num_dims = 1;
    a.dims[0] = {1, columns};
    return a;
  }
  Instruction& add(Engine engine, Instruction instruction) {
    auto& queue = program_.segments[0].queues[static_cast<std::size_t>(engine)];
    queue.push_back(std::move(instruction));
    return queue.back();
  }
  isa::Program& program() { return program_; }

 private:
  std::uint32_t add(isa::Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return static_cast<std::uint32_t>(program_.buffers.size() - 1);
  }
  isa::Program program_;
};

Values random_values(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw(0, 1);
  Values out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(draw(random));
  return out;
}

// ── hazards ──

/// Load, double, store: three engines, two semaphores.
struct Pipeline {
  Writer w;
  std::uint32_t in, out, x, y;
  Instruction *load, *twice, *store;
  Pipeline() {
    constexpr std::int32_t kColumns = 16;
    in = w.hbm("in", 128 * kColumns * 4), out = w.hbm("out", 128 * kColumns * 4);
    x = w.tile("x", kColumns * 4, 0), y = w.tile("y", kColumns * 4, kColumns * 4);
    load = &w.add(Engine::kSync, {.opcode = Opcode::kDma,
                                  .dst = w.rows(x, 128, kColumns),
                                  .src0 = w.rows(in, 128, kColumns),
                                  .updates = {{0, 1}}});
    twice = &w.add(Engine::kVector, {.opcode = Opcode::kTensorScalar,
                                     .alu = isa::AluOp::kMultiply,
                                     .imm0 = 2,
                                     .dst = w.rows(y, 128, kColumns),
                                     .src0 = w.rows(x, 128, kColumns),
                                     .waits = {{0, 1}},
                                     .updates = {{1, 1}}});
    store = &w.add(Engine::kScalar, {.opcode = Opcode::kDma,
                                     .dst = w.rows(out, 128, kColumns),
                                     .src0 = w.rows(y, 128, kColumns),
                                     .waits = {{1, 1}}});
  }
  std::vector<Hazard> hazards(std::uint32_t seed) {
    Interpreter run(w.program(), limits(), {.seed = seed, .hazards = true});
    run.write(in, DType::kFp32, random_values(128 * 16, 3));
    run.run();
    return run.hazards();
  }
};

TEST(Hazards, NoneWhereSemaphoresOrderEveryAccess) {
  for (std::uint32_t seed = 0; seed < 5; ++seed) EXPECT_TRUE(Pipeline().hazards(seed).empty());
}

TEST(Hazards, AMissingSemaphoreIsNamedInAnyOrder) {
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    Pipeline p;
    p.load->updates.clear();
    p.twice->waits.clear();
    const auto found = p.hazards(seed);
    ASSERT_FALSE(found.empty()) << "seed " << seed;
    bool is_named = false;
    for (const Hazard& hazard : found) {
      is_named |=
          hazard.kind == HazardKind::kRace &&
          ((hazard.first.engine == Engine::kSync && hazard.second.engine == Engine::kVector) ||
           (hazard.first.engine == Engine::kVector && hazard.second.engine == Engine::kSync));
    }
    EXPECT_TRUE(is_named) << found.front().text;
  }
}

TEST(Hazards, ATextNamesInstructionsBufferAndPlace) {
  Pipeline p;
  p.load->updates.clear();
  p.twice->waits.clear();
  p.twice->src0.dims[0].count = 4;  // of x, columns 0 to 3
  p.twice->dst.dims[0].count = 4;
  p.store->src0.dims[0].count = 4;
  p.store->dst.dims[0].count = 4;
  const auto found = p.hazards(0);
  ASSERT_EQ(found.size(), 2u);  // the engine was first: it also read what was never written
  EXPECT_EQ(
      found[0].text,
      "segment 0: vector 0 (tensor_scalar) reads byte 0 of partition 0 of sbuf (x), which was "
      "never written");
  EXPECT_EQ(found[1].text,
            "segment 0: sync 0 (dma) writes byte 0 of partition 0 of sbuf (x) that vector 0 "
            "(tensor_scalar) reads, and no semaphore orders them");
}

TEST(Hazards, TilesThatOverlapAreRaces) {
  Pipeline p;
  Instruction& other = p.w.add(
      Engine::kGpSimd, {.opcode = Opcode::kMemset, .imm0 = 1, .dst = p.w.rows(p.y, 128, 1)});
  other.dst.offset = 15;  // the last column of y
  bool is_found = false;
  for (const Hazard& hazard : p.hazards(5))
    is_found |= hazard.byte == 15 * 4 + 16 * 4 && hazard.kind == HazardKind::kRace;
  EXPECT_TRUE(is_found);
}

TEST(Hazards, NeighboursInOneRowAreNone) {
  Pipeline p;
  const auto z = p.w.tile("z", 64, 256);
  for (const auto& [engine, first] : {std::pair{Engine::kGpSimd, 0}, {Engine::kTensor, 1}}) {
    Instruction& i = p.w.add(engine, {.opcode = Opcode::kMemset, .dst = p.w.rows(z, 128, 8)});
    i.dst.offset = first;  // even and odd columns
    i.dst.dims[0].stride = 2;
  }
  EXPECT_TRUE(p.hazards(1).empty());
}

// ── tiles against elements ──

/// A chain of random instructions on one engine over tiles of fp32 and bf16.
isa::Program random_chain(Writer& w, std::mt19937& random, std::uint32_t out) {
  constexpr std::int32_t kColumns = 24;
  const std::uint32_t tiles[] = {w.tile("a", 96, 0), w.tile("b", 96, 128), w.tile("c", 96, 256)};
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto operand = [&](std::uint32_t buffer, std::int32_t columns) {
    return w.rows(buffer, 100, columns, buffer == tiles[1] ? DType::kBf16 : DType::kFp32);
  };
  constexpr isa::AluOp kAlu[] = {isa::AluOp::kAdd,    isa::AluOp::kSubtract, isa::AluOp::kMultiply,
                                 isa::AluOp::kDivide, isa::AluOp::kMax,      isa::AluOp::kGreater};
  constexpr isa::Activation kFn[] = {isa::Activation::kExp, isa::Activation::kTanh,
                                     isa::Activation::kSquare, isa::Activation::kIdentity,
                                     isa::Activation::kGelu};
  for (const std::uint32_t tile : tiles) {
    w.add(Engine::kVector, {.opcode = Opcode::kMemset,
                            .imm0 = 0.37 * pick(9) - 1,
                            .dst = w.rows(tile, 128, kColumns)});
  }
  constexpr Opcode kOpcodes[] = {
      Opcode::kTensorTensor, Opcode::kTensorScalar, Opcode::kScalarTensorTensor,
      Opcode::kActivation,   Opcode::kTensorCopy,   Opcode::kTensorReduce,
      Opcode::kSelect};
  for (int i = 0; i < 30; ++i) {
    Instruction x{.opcode = kOpcodes[pick(7)],
                  .alu = kAlu[pick(6)],
                  .alu2 = kAlu[pick(6)],
                  .activation = kFn[pick(5)]};
    x.imm0 = 0.1 * (pick(30) - 15), x.imm1 = 0.3 * pick(7);
    const std::int32_t width = x.opcode == Opcode::kTensorReduce ? 1 : kColumns / 2;
    x.dst = operand(tiles[pick(3)], width);
    x.src0 = operand(tiles[pick(3)], kColumns / 2);
    const bool scalar = x.opcode == Opcode::kTensorScalar || x.opcode == Opcode::kActivation;
    if (x.opcode != Opcode::kTensorCopy && x.opcode != Opcode::kTensorReduce &&
        (!scalar || pick(2) == 0))
      x.src1 = operand(tiles[pick(3)], scalar ? 1 : kColumns / 2);
    if (scalar && pick(3) == 0) {
      x.dst1 = operand(tiles[pick(3)], 1);
      x.dst1.offset = kColumns - 1;
    }
    w.add(Engine::kVector, x);
  }
  w.add(Engine::kVector, {.opcode = Opcode::kSemaphore, .updates = {{0, 3}}});
  std::int64_t at = 0;
  for (const std::uint32_t tile : tiles) {
    Instruction store{.opcode = Opcode::kDma,
                      .dst = w.rows(out, 128, kColumns),
                      .src0 = w.rows(tile, 128, kColumns),
                      .waits = {{0, 1}}};
    store.dst.offset = at;
    at += 128 * kColumns;
    w.add(Engine::kSync, store);
  }
  return w.program();
}

TEST(Tiles, HaveTheBitsOfElements) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Writer w;
    const auto out = w.hbm("out", 3 * 128 * 24 * 4);
    const isa::Program program = random_chain(w, random, out);
    Values results[2];
    for (const bool exact : {false, true}) {
      Interpreter run(program, limits(), {.exact = exact});
      run.run();
      results[exact ? 1 : 0] = run.read(out, DType::kFp32, 3 * 128 * 24);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      const double a = results[0][i], b = results[1][i];
      ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
          << "seed " << seed << " element " << i << ": " << a << " and " << b;
    }
  }
}

TEST(Tiles, ProductsSumInAscendingOrder) {
  std::mt19937 random(5);
  std::normal_distribution<float> draw(0, 1);
  for (const auto& [k, m, n] : {std::tuple{128, 128, 512}, {7, 5, 13}, {1, 1, 1}, {64, 127, 9}}) {
    std::vector<float> weights(static_cast<std::size_t>(k * m)),
        moving(static_cast<std::size_t>(k * n)), sums(static_cast<std::size_t>(m * n));
    for (auto* all : {&weights, &moving, &sums}) {
      for (float& x : *all) x = draw(random);
    }
    std::vector<float> want = sums;
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        float& sum = want[static_cast<std::size_t>(i * n + j)];
        for (int p = 0; p < k; ++p) {
          const float product = weights[static_cast<std::size_t>(p * m + i)] *
                                moving[static_cast<std::size_t>(p * n + j)];
          sum = sum + product;
        }
      }
    }
    multiply_add(weights.data(), m, moving.data(), k, m, n, sums.data());
    EXPECT_EQ(sums, want) << k << " " << m << " " << n;
  }
}

TEST(Numbers, EveryHalfIsReadAndWritten) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const double value = from_half(static_cast<std::uint16_t>(code));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_half(value), code);
  }
  EXPECT_EQ(to_half(65519), 0x7bff);
  EXPECT_EQ(to_half(65520), 0x7c00);            // rounds to infinity
  EXPECT_EQ(to_half(std::ldexp(1.0, -25)), 0);  // a half of the smallest: to even
}

TEST(Numbers, WhatHasNoneIsRefusedByName) {
  Writer w;
  const auto out = w.hbm("out", 4);
  (void)out;
  const auto x = w.tile("x", 64, 0);
  w.add(Engine::kGpSimd,
        {.opcode = Opcode::kSendRecv, .dst = w.rows(x, 1, 4), .src0 = w.rows(x, 1, 4)});
  Interpreter run(w.program(), limits(), {});
  try {
    run.run();
    FAIL() << "the pair's exchange has no numbers on one core";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "no numbers are defined for send_recv");
  }
}

}  // namespace
}  // namespace trellis::sim::functional
