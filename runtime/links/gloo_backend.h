#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trellis::runtime {

/// LibTorch's Gloo for one of `size` members, which meet in `store`. It listens on the interface
/// GLOO_SOCKET_IFNAME; without that variable on the loopback one where `address`, of the job's
/// first host, is on it or "", else on that of the host's name.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> new_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int member, int size,
    std::chrono::milliseconds timeout, const std::string& address);

}  // namespace trellis::runtime
