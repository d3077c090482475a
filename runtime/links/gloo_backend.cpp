// LibTorch's wheel holds ProcessGroupGloo, not Gloo's headers: those are the system's.
#define USE_C10D_GLOO
#include "runtime/links/gloo_backend.h"

#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace trellis::runtime {
namespace {

std::shared_ptr<gloo::transport::Device> gloo_device(const std::string& address) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0')
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  if (address.empty() || address == "localhost")
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  if (address.starts_with("127.")) return c10d::ProcessGroupGloo::createDeviceForHostname(address);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> new_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   int member, int size,
                                                   std::chrono::milliseconds timeout,
                                                   const std::string& address) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = {gloo_device(address)};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, member, size, options);
}

}  // namespace trellis::runtime
