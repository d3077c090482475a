#include "trainer/parallel_layers/collectives.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "runtime/calls/call_place.h"

namespace trellis::trainer {
namespace {

PendingCollective start_all_reduce_op(at::Tensor tensor, const ParallelGroup& group,
                                      c10d::ReduceOp::RedOpType op, std::source_location where) {
  if (group.size == 1) return PendingCollective(std::move(tensor));
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous(),
                        "all-reduce works in place and needs a contiguous tensor");
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  const runtime::CallSite site(where);
  auto work = group.group->allreduce(tensors, options);
  return PendingCollective({}, std::move(tensor), std::move(work));
}

std::vector<int64_t> with_first_dim(const at::Tensor& tensor, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = size;
  return sizes;
}

void check_divisible(const at::Tensor& tensor, int64_t dim, const ParallelGroup& group) {
  if (tensor.size(dim) % group.size == 0) return;
  throw ConfigError(c10::str(
      "cannot share dimension ", dim, " of a tensor of sizes ", tensor.sizes(), " among ",
      group.size, " ranks: expected a multiple of ", group.size, ", got ", tensor.size(dim)));
}

}  // namespace

void PendingCollective::complete() {
  if (work_) work_->wait();
  work_.reset();
  inputs_.clear();
}

at::Tensor PendingCollective::wait() {
  complete();
  return std::move(result_);
}

PendingCollective start_all_reduce(at::Tensor tensor, const ParallelGroup& group,
                                   std::source_location where) {
  return start_all_reduce_op(std::move(tensor), group, c10d::ReduceOp::SUM, where);
}

at::Tensor all_reduce_max(at::Tensor tensor, const ParallelGroup& group,
                          std::source_location where) {
  return start_all_reduce_op(std::move(tensor), group, c10d::ReduceOp::MAX, where).wait();
}

PendingCollective start_all_gather(const at::Tensor& shard, const ParallelGroup& group,
                                   std::source_location where) {
  if (group.size == 1) return PendingCollective(shard);
  at::Tensor input = shard.contiguous();
  at::Tensor full = at::empty(with_first_dim(shard, shard.size(0) * group.size), shard.options());
  const runtime::CallSite site(where);
  auto work = group.group->all_gather_single(full, input);
  return PendingCollective({std::move(input)}, std::move(full), std::move(work));
}

at::Tensor gather_to_first(const at::Tensor& shard, const ParallelGroup& group,
                           std::source_location where) {
  if (group.size == 1) return shard;
  std::vector<at::Tensor> inputs{shard.contiguous()};
  std::vector<std::vector<at::Tensor>> outputs;
  at::Tensor full;
  if (group.rank == 0) {
    full = at::empty(with_first_dim(shard, shard.size(0) * group.size), shard.options());
    outputs.push_back(full.split(shard.size(0)));
  }
  const runtime::CallSite site(where);
  group.group->gather(outputs, inputs)->wait();
  return full;
}

PendingCollective start_reduce_scatter(const at::Tensor& full, const ParallelGroup& group,
                                       std::source_location where) {
  if (group.size == 1) return PendingCollective(full);
  check_divisible(full, 0, group);
  at::Tensor input = full.contiguous();
  at::Tensor shard = at::empty(with_first_dim(full, full.size(0) / group.size), full.options());
  const runtime::CallSite site(where);
  auto work = group.group->reduce_scatter_single(shard, input);
  return PendingCollective({std::move(input)}, std::move(shard), std::move(work));
}

PendingCollective start_all_gather_coalesced(std::vector<at::Tensor> shards,
                                             std::vector<at::Tensor> outputs,
                                             const ParallelGroup& group,
                                             std::source_location where) {
  const runtime::CallSite site(where);
  auto work = group.group->all_gather_single_coalesced(outputs, shards);
  return PendingCollective(std::move(shards), at::Tensor(), std::move(work));
}

PendingCollective start_reduce_scatter_coalesced(std::vector<at::Tensor> inputs,
                                                 std::vector<at::Tensor> shards,
                                                 const ParallelGroup& group,
                                                 std::source_location where) {
  const runtime::CallSite site(where);
  auto work = group.group->reduce_scatter_single_coalesced(shards, inputs);
  return PendingCollective(std::move(inputs), at::Tensor(), std::move(work));
}

at::Tensor split(const at::Tensor& full, int64_t dim, const ParallelGroup& group) {
  if (group.size == 1) return full;
  check_divisible(full, dim, group);
  const int64_t part = full.size(dim) / group.size;
  return full.narrow(dim, group.rank * part, part);
}

}  // namespace trellis::trainer
