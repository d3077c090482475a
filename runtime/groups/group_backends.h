#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace trellis::runtime {

struct GroupInfo;
struct WorldOptions;
class Rendezvous;

/// One rank's side of a group that is being made.
struct GroupSeat {
  const WorldOptions& options;
  Rendezvous& rendezvous;
  const GroupInfo& info;
  int member = 0;
  c10::Device device;  ///< of the rank
};

/// Gives `group` a backend for the CPU's tensors and for those of the rank's device: `host`, which
/// reads host memory, as it is, with copies between device and host, or WorldOptions::backend for
/// the device. REQUIRES: all members do.
void set_backends(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Backend>& host,
                  const GroupSeat& seat);

}  // namespace trellis::runtime
