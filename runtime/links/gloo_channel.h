#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "runtime/links/channel.h"

namespace trellis::runtime {

/// A channel to a process anywhere: messages of LibTorch's Gloo. A separate thread sends, because
/// Gloo waits where the network does not go on.
class GlooChannel final : public Channel {
 public:
  GlooChannel(c10::intrusive_ptr<c10d::Backend> gloo, int process);
  ~GlooChannel() override;
  GlooChannel(const GlooChannel&) = delete;
  GlooChannel& operator=(const GlooChannel&) = delete;
  void send(const Outgoing& message) override;
  void try_send(const Outgoing& message) override;
  Incoming receive() override;
  void flush(std::chrono::milliseconds patience) override;
  void stop() override;

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  void send_queued();
  void send_block(at::Tensor bytes);
  void receive_block(const at::Tensor& bytes);
  /// Waits for `work`, which stop() ends; `place` has it meanwhile.
  void finish(WorkPtr& place, WorkPtr work);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  int process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<at::Tensor> queue_;  ///< what is to be sent; the first is being sent
  bool stopped_ = false;
  bool failed_ = false;  ///< the connection
  WorkPtr sending_, receiving_;
  std::thread sender_;
};

}  // namespace trellis::runtime
