#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/optimizer/update_rule.h"

namespace trellis::trainer {

/// Rounds fp32 to bf16 up or down with a probability that is the discarded fraction: the expected
/// value is the number itself, so updates below half a unit in the last place are not lost. The
/// random bits are a function of (seed, step, parameter, element of the un-sharded parameter) only:
/// replicas agree, and every layout rounds alike. Infinities stay; not-a-numbers stay in the form
/// that arithmetic gives.
class StochasticRounding {
 public:
  /// Keeps the element numbers of the shard's rows and columns on `device`.
  StochasticRounding(const ShardLayout& layout, std::int64_t seed, at::Device device);

  /// `shard`: fp32, flat. `stream`: another name draws other bits for the same step.
  [[nodiscard]] at::Tensor round(const ShardLayout& layout, const at::Tensor& shard,
                                 std::int64_t step, const std::string& stream) const;

 private:
  std::int64_t seed_;
  std::vector<at::Tensor> rows_,
      columns_;  ///< per slot, int32: hashes of global row and column numbers
};

}  // namespace trellis::trainer
