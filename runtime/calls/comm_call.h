#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace trellis::runtime {

enum class CommOp : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
  kNewGroup  ///< members make a group; its elements: which of its rank's groups it is
};
[[nodiscard]] std::string_view name(CommOp op);

enum class Reduction : std::uint8_t {
  kNone,
  kSum,
  kAverage,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor
};
[[nodiscard]] std::string_view name(Reduction reduction);

/// One rank's description of a communication. Those of a group's members are compared and must
/// agree.
struct CommCall {
  CommOp op = CommOp::kBarrier;
  Reduction reduction = Reduction::kNone;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  std::int64_t elements = 0;  ///< gathered size for all-gather, reduce-scatter, gather and scatter;
                              ///< the buffer or message otherwise
  int root = -1;              ///< member; -1: the operation has no root
  int tag = 0;                ///< of send and receive
  std::vector<std::int64_t>
      parts;  ///< elements of each tensor when several travel as one communication
};

/// "all-reduce sum of 1024 float32", "broadcast of 8 int64 from member 1".
[[nodiscard]] std::string describe(const CommCall& call);

/// Size of its elements in bytes; 0: a barrier.
[[nodiscard]] std::int64_t size_in_bytes(const CommCall& call);

/// True if two members of one group can be in the same communication. Uneven all-to-alls may differ
/// in their elements; the splits are compared where both sides are known.
[[nodiscard]] bool matches(const CommCall& a, const CommCall& b);

}  // namespace trellis::runtime
