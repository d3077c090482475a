#pragma once

#include "runtime/groups/device_plugin.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/requests/run_request.h"

namespace trellis::trainer {

/// Before step 1: throws ConfigError with each operator of the run that the device does not have,
/// and the layers that use it. The operators are those of `trellis portability`, which another
/// process lists: two devices may be PrivateUse1. Where it cannot (a layout that no emulated
/// machine has), a warning says why, and so it is with operators that the device hands to the CPU.
void refuse_lacking_operators(const RunRequest& request, const DeviceChoice& choice,
                              const runtime::DevicePlugin& plugin);

}  // namespace trellis::trainer
