#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint {

/// A source's tensors by key.
using TensorIndex = std::map<std::string, const TensorEntry*>;
[[nodiscard]] TensorIndex index_of(const TensorSource& source);

/// Takes the next bytes of a tensor, in row-major order.
using WriteBytes = std::function<void(std::span<const std::byte>)>;

/// Fills a tensor of a new file from the global tensors of a checkpoint, whatever that has in
/// other types: parts of several global tensors, copies, and zeros where no part is.
class TensorFill {
 public:
  TensorFill(const TensorSource& source, const TensorIndex& index)
      : source_(source), index_(index) {}

  /// Why the part cannot be filled in the type `dtype`; "" when it can.
  [[nodiscard]] std::string problem(const ShardedPart& part, DType dtype) const;
  /// Writes the tensor in pieces; needs memory for one of them. REQUIRES: no part has a problem.
  void write(const TensorMeta& meta, const std::vector<ShardedPart>& parts,
             const WriteBytes& write);

 private:
  [[nodiscard]] const TensorEntry* entry_of(const ShardedPart& part, DType dtype) const;
  void fill(const Box& piece, DType dtype, const ShardedPart& part);

  const TensorSource& source_;
  const TensorIndex& index_;
  std::vector<std::byte> piece_, read_, converted_;  ///< of the present piece
};

}  // namespace trellis::checkpoint
