#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "runtime/groups/side_builder.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {

class DevicePlugin;

/// The c10d backend `neuron` for ranks that are threads of one process: one instance per rank and
/// group. It serves CPU tensors and the plugin's tensors alike, because both live in host memory. A
/// communication starts at the call and must be waited for. Results depend only on the members'
/// data: never on arrival order, on the number of host threads or on how tensors are bucketed.
/// Reduce, gather and scatter run the plans of all-reduce, all-gather and broadcast, and keep what
/// the root or the member needs.
class ProcessGroupNeuron final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  struct Options {
    const DevicePlugin* plugin =
        nullptr;  ///< notified of communications when it has the members for that
    bool shape_only = false;
    c10::Device device = c10::Device(c10::kCPU);  ///< of the rank
  };
  ProcessGroupNeuron(std::shared_ptr<Rendezvous> rendezvous, Rendezvous::Group& group, int member,
                     Options options);

  const std::string getBackendName() const override { return "neuron"; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return backend_options_; }
  /// For communications that name no own timeout; without it the world's holds.
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// Communications so far. Members start from 0 together: nothing needs to be agreed on.
  std::uint64_t getSequenceNumberForGroup() override { return collectives_; }
  void setSequenceNumberForGroup() override {}
  c10d::ErrorType getError() override;
  /// The group is over for this rank: what it starts later is an error that says so.
  void shutdown() override { is_shut_down_ = true; }
  void abort() override { shutdown(); }

  /// Between the two, communications start as before, but none waits; the end returns a Work for
  /// all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

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
  /// Splits count rows of dimension 0; empty: even.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  /// A barrier that waits; every hang names all missing ranks, whatever `wait_all_ranks` says.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  /// The n-th send from a to b in this group meets the n-th receive; a differing tag is a mismatch.
  /// A send leaves a copy and is complete.
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  /// A communication about to start.
  struct Request {
    c10d::OpType op = c10d::OpType::UNKNOWN;
    CommCall call;
    Tensors inputs;
    Tensors outputs;
    std::chrono::milliseconds timeout{-1};
    bool asynchronous = true;
    int source = -1;  ///< of a receive; global
  };
  WorkPtr start_collective(Request request, Side side, Tensors result);
  WorkPtr finish_start(const Request& request, std::uint64_t sequence, std::int64_t handle,
                       std::shared_ptr<Transfer> transfer, Tensors result);
  void check_usable(const Request& request) const;
  [[nodiscard]] bool is_announced(const Request& request) const;
  std::int64_t announce(const Request& request, const std::vector<int>& ranks,
                        std::uint64_t sequence) const;
  [[nodiscard]] int rank_of(int member) const {
    return group_.info->ranks[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] int world_rank() const { return rank_of(rank_); }

  std::shared_ptr<Rendezvous> rendezvous_;
  Rendezvous::Group& group_;
  Options options_;
  c10::intrusive_ptr<Backend::Options> backend_options_;
  std::chrono::milliseconds timeout_{0};  ///< 0: the world's
  bool is_shut_down_ = false;
  std::optional<std::vector<WorkPtr>> coalesced_;  ///< since startCoalescing
  std::uint64_t collectives_ = 0;
  std::map<int, std::uint64_t> sent_;      ///< messages, by member
  std::map<int, std::uint64_t> received_;  ///< messages, by member
};

}  // namespace trellis::runtime
