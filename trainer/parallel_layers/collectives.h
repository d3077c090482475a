#pragma once

#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// A collective in flight: its result may be read after wait(). An axis of size 1 gives a result
/// that is there at once.
class PendingCollective {
 public:
  explicit PendingCollective(at::Tensor result) : result_(std::move(result)) {}
  /// `inputs` are kept alive until the communication ended.
  PendingCollective(std::vector<at::Tensor> inputs, at::Tensor result,
                    c10::intrusive_ptr<c10d::Work> work)
      : inputs_(std::move(inputs)), result_(std::move(result)), work_(std::move(work)) {}
  at::Tensor wait();
  /// Waits and releases the inputs; wait() gives the result then.
  void complete();
  /// The same communication, with another result.
  PendingCollective with_result(at::Tensor result) && {
    result_ = std::move(result);
    return std::move(*this);
  }

 private:
  std::vector<at::Tensor> inputs_;
  at::Tensor result_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// `where`: the line that reports of hangs name.
/// Sums `tensor` over the group, in place. REQUIRES: contiguous.
[[nodiscard]] PendingCollective start_all_reduce(
    at::Tensor tensor, const ParallelGroup& group,
    std::source_location where = std::source_location::current());
/// Concatenates the members' shards along dimension 0.
[[nodiscard]] PendingCollective start_all_gather(
    const at::Tensor& shard, const ParallelGroup& group,
    std::source_location where = std::source_location::current());
/// The same for the group's first member alone; undefined on the others.
at::Tensor gather_to_first(const at::Tensor& shard, const ParallelGroup& group,
                           std::source_location where = std::source_location::current());
/// Sums over the group and keeps this member's part of dimension 0. REQUIRES: dimension 0 divisible
/// by the group's size.
[[nodiscard]] PendingCollective start_reduce_scatter(
    const at::Tensor& full, const ParallelGroup& group,
    std::source_location where = std::source_location::current());
/// The same for several tensors in one communication; the caller's outputs receive the results and
/// wait() returns nothing. REQUIRES: a group of more than one; contiguous tensors, inputs[i] and
/// outputs[i] differing in size by the group's size.
[[nodiscard]] PendingCollective start_all_gather_coalesced(
    std::vector<at::Tensor> shards, std::vector<at::Tensor> outputs, const ParallelGroup& group,
    std::source_location where = std::source_location::current());
[[nodiscard]] PendingCollective start_reduce_scatter_coalesced(
    std::vector<at::Tensor> inputs, std::vector<at::Tensor> shards, const ParallelGroup& group,
    std::source_location where = std::source_location::current());

inline at::Tensor all_reduce(at::Tensor tensor, const ParallelGroup& group,
                             std::source_location where = std::source_location::current()) {
  return start_all_reduce(std::move(tensor), group, where).wait();
}
at::Tensor all_reduce_max(at::Tensor tensor, const ParallelGroup& group,
                          std::source_location where = std::source_location::current());
inline at::Tensor all_gather(const at::Tensor& shard, const ParallelGroup& group,
                             std::source_location where = std::source_location::current()) {
  return start_all_gather(shard, group, where).wait();
}
inline at::Tensor reduce_scatter(const at::Tensor& full, const ParallelGroup& group,
                                 std::source_location where = std::source_location::current()) {
  return start_reduce_scatter(full, group, where).wait();
}
/// This member's part of dimension `dim`: a view. Throws Error (kConfig) when the group's size does
/// not divide it.
at::Tensor split(const at::Tensor& full, int64_t dim, const ParallelGroup& group);

}  // namespace trellis::trainer
