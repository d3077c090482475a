#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "sim/isa/program.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim::isa::testing {

/// Legal programs of nested loops that never deadlock: a chain of stages, each on its own engine,
/// that hand tokens forward and credits back through semaphores. A stage may take and return its
/// tokens one by one in an inner loop, all at once, or in one flat loop.
class RandomLoops {
 public:
  explicit RandomLoops(std::uint32_t seed) : rng_(seed) {
    program_.name = "random loops";
    program_.buffers = {
        {MemorySpace::kHbm, "x", 1 << 26, 0, 0, 0, 0, 0},
        {MemorySpace::kSbuf, "tiles", 0, -1, 0, 128, 64 * 1024, 0},
        {MemorySpace::kPsum, "sum", 0, -1, 0, 128, 2048, 0},
    };
    program_.segments.resize(1);
  }

  /// `iterations`: of the outermost loops, at most.
  Program make(std::int64_t iterations) {
    for (std::int64_t nests = 1 + below(2); nests > 0; --nests) add_nest(1 + below(iterations));
    return program_;
  }

 private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(n));
  }
  std::vector<Instruction>& queue(Engine engine) {
    return program_.segments[0].queues[static_cast<std::size_t>(engine)];
  }

  static Instruction control(Opcode opcode, std::int64_t count = 1) {
    Instruction i;
    i.opcode = opcode;
    i.count = count;
    return i;
  }

  /// A semaphore between the stages: `forward` counts tokens, `back` free places.
  struct Edge {
    std::uint16_t forward, back;
  };

  void add_nest(std::int64_t iterations) {
    std::vector<Engine> engines = {Engine::kTensor, Engine::kVector, Engine::kScalar,
                                   Engine::kGpSimd, Engine::kSync};
    std::shuffle(engines.begin(), engines.end(), rng_);
    engines.resize(static_cast<std::size_t>(1 + below(5)));
    const std::int64_t tokens = 1 + below(6);  // per iteration
    const std::int64_t places = tokens + below(7);
    std::vector<Edge> edges;
    for (std::size_t i = 1; i < engines.size(); ++i) {
      edges.push_back({next_semaphore_, static_cast<std::uint16_t>(next_semaphore_ + 1)});
      next_semaphore_ = static_cast<std::uint16_t>(next_semaphore_ + 2);
      Instruction prime = control(Opcode::kSemaphore);
      prime.updates = {{edges.back().back, static_cast<std::uint16_t>(places)}};
      queue(engines[i]).push_back(prime);
    }
    program_.kernels.push_back({"nest", 0, 0, false});
    for (std::size_t i = 0; i < engines.size(); ++i) {
      add_stage(engines[i], i > 0 ? &edges[i - 1] : nullptr, i < edges.size() ? &edges[i] : nullptr,
                iterations, tokens);
    }
  }

  void add_stage(Engine engine, const Edge* in, const Edge* out, std::int64_t iterations,
                 std::int64_t tokens) {
    auto& q = queue(engine);
    const std::int64_t style = below(3);
    const auto at_once = static_cast<std::uint16_t>(style == 1 ? tokens : 1);
    q.push_back(control(Opcode::kLoop, style == 2 ? iterations * tokens : iterations));
    if (style != 2) add_work(engine, below(3));
    if (style == 0) q.push_back(control(Opcode::kLoop, tokens));
    Instruction take = control(Opcode::kSemaphore);
    if (in != nullptr) take.waits.push_back({in->forward, at_once});
    if (out != nullptr) take.waits.push_back({out->back, at_once});
    q.push_back(take);
    add_work(engine, below(5));
    Instruction last = dma();
    const bool by_dma = engine == Engine::kSync || below(2) == 0;
    if (!by_dma) last = compute(engine);
    if (in != nullptr) last.updates.push_back({in->back, at_once});
    if (out != nullptr) last.updates.push_back({out->forward, at_once});
    q.push_back(last);
    if (style == 0) q.push_back(control(Opcode::kEndLoop));
    q.push_back(control(Opcode::kEndLoop));
  }

  void add_work(Engine engine, std::int64_t count) {
    for (; count > 0; --count) {
      if (engine != Engine::kSync) queue(engine).push_back(compute(engine));
    }
  }

  Instruction dma() {
    Instruction i;
    i.opcode = Opcode::kDma;
    const int columns = 64 << below(6);
    i.dst = tile(1, DType::kBf16, 128, columns);
    i.src0 = tile(0, DType::kBf16, 128, columns);
    i.src0.partition_stride = columns + 64 * below(2);
    i.dma_queue = static_cast<DmaQueue>(below(2));
    if (below(3) == 0) std::swap(i.dst, i.src0);
    i.kernel = static_cast<std::uint32_t>(program_.kernels.size() - 1);
    return i;
  }

  Instruction compute(Engine engine) {
    Instruction i;
    i.kernel = static_cast<std::uint32_t>(program_.kernels.size() - 1);
    const int columns = 32 << below(5);
    if (engine == Engine::kTensor) {
      const bool load = queue(engine).empty() || !has_weights_ || below(2) == 0;
      has_weights_ = true;
      i.opcode = load ? Opcode::kLoadStationary : Opcode::kMatmul;
      i.src0 = tile(1, DType::kBf16, 128, load ? 128 : columns);
      if (!load) i.dst = tile(2, DType::kFp32, 128, columns);
      return i;
    }
    i.opcode = engine == Engine::kScalar ? Opcode::kActivation : Opcode::kTensorCopy;
    i.activation = static_cast<Activation>(below(12));
    i.dst = tile(1, DType::kBf16, 128, columns);
    i.dst.offset = 4096 * below(2);  // half of them depend on the instruction before
    i.src0 = tile(1, DType::kBf16, 128, columns);
    return i;
  }

  std::mt19937 rng_;
  Program program_;
  std::uint16_t next_semaphore_ = 0;
  bool has_weights_ = false;
};

}  // namespace trellis::sim::isa::testing
