#include "runtime/groups/group_backends.h"

#include <memory>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runtime/calls/transfer.h"
#include "runtime/groups/device_plugin.h"
#include "runtime/groups/staged_group.h"
#include "runtime/groups/world_options.h"
#include "runtime/links/gloo_backend.h"
#include "runtime/links/process_link.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using BackendType = c10d::ProcessGroup::BackendType;

/// Staged, where the plugin's takes tensors of the CPU only.
BackendPtr named_backend(const GroupSeat& seat) {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>(
      seat.info.label + " " + seat.options.backend, seat.rendezvous.new_store());
  const auto members = static_cast<int>(seat.info.ranks.size());
  if (seat.options.backend == "gloo") {
    const ProcessLink* const link = seat.options.link;
    const auto gloo = new_gloo_backend(store, seat.member, members, seat.options.timeout,
                                       link == nullptr ? "" : link->launch().address);
    return seat.device.is_cpu() ? gloo : BackendPtr(c10::make_intrusive<StagedGroup>(gloo));
  }
  const DevicePlugin& plugin = *seat.options.plugin;
  const trellis_backend_request request{.backend = seat.options.backend.c_str(),
                                        .store = &store,
                                        .member = seat.member,
                                        .num_members = members,
                                        .timeout_ms = seat.options.timeout.count()};
  void* made = nullptr;
  std::int32_t takes_device = 0;
  plugin.check(plugin.api().new_backend(&request, &made, &takes_device));
  const std::unique_ptr<BackendPtr> backend(static_cast<BackendPtr*>(made));
  if (takes_device != 0 || seat.device.is_cpu()) return *backend;
  return c10::make_intrusive<StagedGroup>(*backend);
}

/// Where the emulator keeps tensors.
bool lies_in_host_memory(const GroupSeat& seat) {
  return seat.device.is_cpu() || seat.options.plugin->api().device_of_rank == nullptr;
}

}  // namespace

void set_backends(c10d::ProcessGroup& group, const BackendPtr& host, const GroupSeat& seat) {
  constexpr auto kHost = BackendType::CUSTOM;
  group.setDefaultBackend(kHost);
  if (seat.options.backend.empty()) {
    const BackendPtr any =
        lies_in_host_memory(seat) ? host : BackendPtr(c10::make_intrusive<StagedGroup>(host));
    group.setBackend(c10::kCPU, kHost, any);
    const c10::DeviceType other =
        seat.device.is_cpu() ? c10::DeviceType::PrivateUse1 : seat.device.type();
    return group.setBackend(other, kHost, any);
  }
  // LibTorch keeps one backend per type; of a library's own it has no name.
  BackendType type = c10d::ProcessGroup::strToBackendType(seat.options.backend);
  if (type == kHost) type = BackendType::UNDEFINED;
  if (!seat.device.is_cpu()) group.setBackend(c10::kCPU, kHost, host);
  group.setBackend(seat.device.type(), type, named_backend(seat));
  if (seat.device.is_cpu()) group.setDefaultBackend(type);
}

}  // namespace trellis::runtime
