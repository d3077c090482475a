#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trellis::runtime {

/// A backend for tensors of any device over one for the CPU's: what is sent is copied to the host
/// first, what is received goes to the device at wait(), which must be called. Tensors of the CPU
/// pass as they are.
class StagedGroup final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  explicit StagedGroup(c10::intrusive_ptr<c10d::Backend> carrier);

  const std::string getBackendName() const override { return carrier_->getBackendName(); }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override {
    return carrier_->getBackendOptions();
  }
  void setTimeout(std::chrono::milliseconds timeout) override { carrier_->setTimeout(timeout); }
  void shutdown() override { carrier_->shutdown(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  c10::intrusive_ptr<c10d::Backend> carrier_;
};

}  // namespace trellis::runtime
