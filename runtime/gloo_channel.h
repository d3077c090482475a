#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "runtime/channel.h"

namespace trellis::runtime {

/// A channel to a process anywhere: messages of LibTorch's Gloo.
class GlooChannel final : public Channel {
 public:
  GlooChannel(c10::intrusive_ptr<c10d::Backend> gloo, int process)
      : gloo_(std::move(gloo)), process_(process) {}
  void send(const Outgoing& message) override;
  Incoming receive() override;

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
  int process_;
};

}  // namespace trellis::runtime
