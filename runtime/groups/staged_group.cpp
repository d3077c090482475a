#include "runtime/groups/staged_group.h"

#include <utility>

#include <ATen/ops/empty_like.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace trellis::runtime {
namespace {

using c10d::OpType;
using Tensors = StagedGroup::Tensors;

at::Tensor copied(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor : tensor.to(c10::kCPU).contiguous();
}

/// Room for what will be received.
at::Tensor room_for(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::empty(tensor.sizes(), tensor.options().device(c10::kCPU));
}

Tensors copied(const Tensors& tensors) {
  Tensors host;
  for (const at::Tensor& tensor : tensors) host.push_back(copied(tensor));
  return host;
}

Tensors room_for(const Tensors& tensors) {
  Tensors host;
  for (const at::Tensor& tensor : tensors) host.push_back(room_for(tensor));
  return host;
}

/// Keeps the host's tensors while the carrier works on them; what came is on the device after
/// wait().
class StagedWork final : public c10d::Work {
 public:
  struct Parts {
    Tensors sent;      ///< on the host
    Tensors received;  ///< on the host
    Tensors outputs;   ///< on the device, one for each received
  };
  StagedWork(int rank, OpType op, c10::intrusive_ptr<c10d::Work> carried, Parts parts)
      : Work(rank, op), carried_(std::move(carried)), parts_(std::move(parts)) {}

  bool isCompleted() override { return carried_->isCompleted(); }
  bool isSuccess() const override { return carried_->isSuccess(); }
  std::exception_ptr exception() const override { return carried_->exception(); }
  std::vector<at::Tensor> result() override { return parts_.outputs; }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (!carried_->wait(timeout)) return false;
    for (std::size_t i = 0; i < parts_.received.size(); ++i) {
      if (!parts_.outputs[i].is_same(parts_.received[i]))
        parts_.outputs[i].copy_(parts_.received[i]);
    }
    parts_.received.clear();
    return true;
  }
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  /// Waits, then returns a completed future: callbacks must run on the rank's own thread.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait();
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(parts_.outputs));
    return future;
  }

 private:
  c10::intrusive_ptr<c10d::Work> carried_;
  Parts parts_;
};

}  // namespace

StagedGroup::StagedGroup(c10::intrusive_ptr<c10d::Backend> carrier)
    : Backend(carrier->getRank(), carrier->getSize()), carrier_(std::move(carrier)) {}

StagedGroup::WorkPtr StagedGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Tensors host = copied(tensors);
  auto work = carrier_->allreduce(host, opts);
  return c10::make_intrusive<StagedWork>(rank_, OpType::ALLREDUCE, std::move(work),
                                         StagedWork::Parts{{}, std::move(host), tensors});
}

StagedGroup::WorkPtr StagedGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Tensors host = copied(tensors);
  auto work = carrier_->broadcast(host, opts);
  return c10::make_intrusive<StagedWork>(rank_, OpType::BROADCAST, std::move(work),
                                         StagedWork::Parts{{}, std::move(host), tensors});
}

StagedGroup::WorkPtr StagedGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  at::Tensor from = copied(input), to = room_for(output);
  auto work = carrier_->_allgather_base(to, from, opts);
  return c10::make_intrusive<StagedWork>(rank_, OpType::_ALLGATHER_BASE, std::move(work),
                                         StagedWork::Parts{{from}, {to}, {output}});
}

StagedGroup::WorkPtr StagedGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Tensors from = copied(inputs), to = room_for(outputs);
  auto work = carrier_->allgather_into_tensor_coalesced(to, from, opts);
  return c10::make_intrusive<StagedWork>(
      rank_, OpType::COALESCED, std::move(work),
      StagedWork::Parts{std::move(from), std::move(to), outputs});
}

StagedGroup::WorkPtr StagedGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  at::Tensor from = copied(input), to = room_for(output);
  auto work = carrier_->_reduce_scatter_base(to, from, opts);
  return c10::make_intrusive<StagedWork>(rank_, OpType::_REDUCE_SCATTER_BASE, std::move(work),
                                         StagedWork::Parts{{from}, {to}, {output}});
}

StagedGroup::WorkPtr StagedGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  Tensors from = copied(inputs), to = room_for(outputs);
  auto work = carrier_->reduce_scatter_tensor_coalesced(to, from, opts);
  return c10::make_intrusive<StagedWork>(
      rank_, OpType::COALESCED, std::move(work),
      StagedWork::Parts{std::move(from), std::move(to), outputs});
}

StagedGroup::WorkPtr StagedGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& output_splits,
                                                std::vector<std::int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  at::Tensor from = copied(input), to = room_for(output);
  auto work = carrier_->alltoall_base(to, from, output_splits, input_splits, opts);
  return c10::make_intrusive<StagedWork>(rank_, OpType::ALLTOALL_BASE, std::move(work),
                                         StagedWork::Parts{{from}, {to}, {output}});
}

StagedGroup::WorkPtr StagedGroup::barrier(const c10d::BarrierOptions& opts) {
  c10d::BarrierOptions host = opts;
  host.device = c10::Device(c10::kCPU);
  return carrier_->barrier(host);
}

StagedGroup::WorkPtr StagedGroup::send(Tensors& tensors, int to, int tag) {
  Tensors host = copied(tensors);
  auto work = carrier_->send(host, to, tag);
  return c10::make_intrusive<StagedWork>(rank_, OpType::SEND, std::move(work),
                                         StagedWork::Parts{std::move(host), {}, {}});
}

StagedGroup::WorkPtr StagedGroup::recv(Tensors& tensors, int from, int tag) {
  Tensors host = room_for(tensors);
  auto work = carrier_->recv(host, from, tag);
  return c10::make_intrusive<StagedWork>(rank_, OpType::RECV, std::move(work),
                                         StagedWork::Parts{{}, std::move(host), tensors});
}

}  // namespace trellis::runtime
