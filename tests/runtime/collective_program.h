#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

/// Random programs of collectives as data. Every tensor of a program follows from its seed, so that
/// any backend, on any thread, and the oracle start from the same numbers.
namespace trellis::runtime::testing {

using Tensors = std::vector<at::Tensor>;

enum class ProgramOp : std::uint8_t {
  kAllReduce,
  kAllReduceCoalesced,
  kReduce,
  kBroadcast,
  kAllGather,
  kAllGatherBase,
  kAllGatherCoalesced,
  kReduceScatter,
  kReduceScatterBase,
  kReduceScatterCoalesced,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllBase,
  kMessages,
  kBarrier,
};
inline constexpr int kProgramOps = 16;
[[nodiscard]] const char* name(ProgramOp op);

/// A send and its receive; members of the group.
struct ProgramMessage {
  int from = 0;
  int to = 0;
  int tag = 0;
  std::int64_t elements = 0;
};

struct Instruction {
  ProgramOp op = ProgramOp::kBarrier;
  std::size_t group = 0;
  at::ScalarType dtype = at::kFloat;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  int root = 0;  ///< member
  std::vector<std::vector<std::int64_t>>
      shapes;  ///< of the tensors that travel together; a shard's where there are shards
  std::vector<std::vector<std::int64_t>>
      splits;  ///< all-to-all: rows from member i to member j; empty: even
  std::vector<ProgramMessage> messages;
  std::uint64_t seed = 0;
};

struct Program {
  std::uint64_t seed = 0;
  int ranks = 2;
  int host_threads = 1;
  std::vector<std::vector<int>> groups;  ///< global ranks in member order
  std::vector<Instruction> instructions;
};

[[nodiscard]] Program random_program(std::uint64_t seed);
[[nodiscard]] std::string describe(const Program& program, const Instruction& instruction);

/// The inputs of `member` in an instruction: contiguous CPU tensors, in the order in which its call
/// takes them.
[[nodiscard]] Tensors inputs_of(const Instruction& instruction, int member, int members);
/// Shapes of what `member` receives, in the order in which its call takes them.
[[nodiscard]] std::vector<std::vector<std::int64_t>> output_shapes(const Instruction& instruction,
                                                                   int member, int members);
/// True if outputs are the input tensors themselves.
[[nodiscard]] bool is_in_place(ProgramOp op);
[[nodiscard]] bool is_reduction(ProgramOp op);

}  // namespace trellis::runtime::testing
