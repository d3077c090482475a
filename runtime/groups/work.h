#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {

class DevicePlugin;

/// A communication that a rank has started. Its tensors may be touched again after wait().
class NeuronWork final : public c10d::Work {
 public:
  struct Parts {
    int rank = 0;  ///< global
    std::shared_ptr<Rendezvous> rendezvous;
    std::shared_ptr<Transfer> transfer;    ///< null: complete from the start
    const DevicePlugin* plugin = nullptr;  ///< null: not announced
    std::int64_t handle = -1;              ///< of the plugin
    std::vector<at::Tensor> result;
    std::uint64_t sequence = 0;  ///< of the group; of the ordered pair for send and receive
    int source = -1;             ///< of a receive; global
    std::chrono::milliseconds timeout{0};  ///< 0: the world's
  };
  NeuronWork(c10d::OpType op, Parts parts) : Work(parts.rank, op), parts_(std::move(parts)) {}

  bool isCompleted() override { return parts_.transfer == nullptr || parts_.transfer->done; }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return parts_.result; }
  std::uint64_t getSequencenumber() const override { return parts_.sequence; }
  int sourceRank() const override { return parts_.source; }
  /// On the rank's own thread. Throws what the communication failed with.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  /// Waits, then returns a completed future of the tensors: callbacks must run on the rank's own
  /// thread.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  Parts parts_;
  bool announced_wait_ = false;
};

/// All communications that were started between startCoalescing and endCoalescing, as one: waits
/// for each in the order of their start.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;  ///< the first one's
  std::vector<at::Tensor> result() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;  ///< as NeuronWork's

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace trellis::runtime
