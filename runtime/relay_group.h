#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "device/plugin.h"

namespace trellis::runtime {

class DevicePlugin;
class RelayRecords;
struct GroupInfo;
struct Transfer;

/// The c10d backend `neuron` for ranks that are separate processes: tensors of the device live
/// in host memory, so a backend for CPU tensors (Gloo) carries aliases of them; the plugin is
/// notified of every communication. Its tensors are the caller's until wait().
class RelayGroup final : public c10d::Backend {
 public:
  struct Options {
    const DevicePlugin* plugin = nullptr;
    std::string axis;
    std::vector<int> ranks;      ///< global, in member order
    std::uint32_t instance = 0;  ///< earlier groups of the same axis and ranks
    std::shared_ptr<RelayRecords> records;
  };
  RelayGroup(c10::intrusive_ptr<c10d::Backend> carrier, Options options);

  const std::string getBackendName() const override { return "neuron"; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  void shutdown() override { carrier_->shutdown(); }

 private:
  /// What the plugin is notified of.
  struct Call {
    c10d::OpType op;
    trellis_comm_kind kind;
    std::int64_t elements;
    Tensors inputs, outputs;
  };
  std::int64_t announce(const Call& call, const std::vector<int>& ranks,
                        std::uint64_t sequence) const;
  WorkPtr started(Call call, WorkPtr carried);
  WorkPtr started(Call call, WorkPtr carried, const std::vector<int>& ranks,
                  std::uint64_t sequence);
  [[nodiscard]] int rank_of(int member) const {
    return options_.ranks[static_cast<std::size_t>(member)];
  }

  [[nodiscard]] std::shared_ptr<Transfer> recorded(const Call& call, const std::vector<int>& ranks,
                                                   std::uint64_t sequence) const;

  c10::intrusive_ptr<c10d::Backend> carrier_;
  Options options_;
  std::shared_ptr<const GroupInfo> info_;
  std::uint64_t collectives_ = 0;
  std::vector<std::uint64_t> sent_, received_;  ///< messages, by member
};

}  // namespace trellis::runtime
