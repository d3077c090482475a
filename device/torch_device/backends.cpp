#include "device/torch_device/backends.h"

#include <dlfcn.h>

#include <chrono>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#ifdef TRELLIS_HAS_NCCL
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "base/error.h"

namespace trellis::device {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// A device's library may export it: a backend that only it has. Returns 0, `kNotThere` when it has
/// none of that name, or another number when it failed.
constexpr const char* kLibrarySymbol = "trellis_new_backend";
constexpr int kNotThere = 1;

#ifdef TRELLIS_HAS_NCCL
BackendPtr new_nccl(const trellis_backend_request& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(request.timeout_ms);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      *static_cast<c10::intrusive_ptr<c10d::Store>*>(request.store), request.member,
      request.num_members, options);
}
#endif

}  // namespace

std::string known_backends() {
#ifdef TRELLIS_HAS_NCCL
  return "gloo, nccl";
#else
  return "gloo";
#endif
}

Backends::Backends(std::string name, void* library) : name_(std::move(name)) {
  if (library != nullptr)
    of_library_ = reinterpret_cast<decltype(of_library_)>(dlsym(library, kLibrarySymbol));
  const bool is_known = name_.empty() || (", " + known_backends() + ",").find(", " + name_ + ",") !=
                                             std::string::npos;
  if (is_known || of_library_ != nullptr) return;
  throw ConfigError(
      "--backend " + name_ + ": this LibTorch was built without it: expected one of " +
      known_backends() +
      ", a backend that the library of --device-library exports as trellis_new_backend, or no "
      "--backend: then ranks exchange bytes through the host's memory");
}

void Backends::make(const trellis_backend_request& request, void** backend,
                    std::int32_t& takes_device) const {
  if (of_library_ != nullptr) {
    const int result = of_library_(&request, backend, &takes_device);
    if (result == 0) return;
    if (result != kNotThere)
      throw ConfigError("--backend " + name_ + ": " + kLibrarySymbol +
                        " of the library of --device-library failed with " +
                        std::to_string(result) +
                        "; expected 0, or 1 for a name that it does not have");
  }
  BackendPtr made;
  takes_device = 0;
#ifdef TRELLIS_HAS_NCCL
  if (name_ == "nccl") {
    made = new_nccl(request);
    takes_device = 1;
  }
#endif
  if (!made) {
    throw ConfigError("--backend " + name_ +
                      ": the library of --device-library has none of this "
                      "name, and LibTorch has only " +
                      known_backends());
  }
  *backend = new BackendPtr(std::move(made));
}

}  // namespace trellis::device
