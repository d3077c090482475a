// The entry of a plugin that a loader checks. Compiled several times: FAKE_… break it.
#include <torch/version.h>

#include "tests/runtime/plugins/fake_plugin.h"

#ifndef FAKE_ABI
#define FAKE_ABI TRELLIS_PLUGIN_ABI_VERSION
#endif
#ifndef FAKE_SIZE
#define FAKE_SIZE sizeof(trellis_device_plugin_t)
#endif
#ifndef FAKE_TORCH
#define FAKE_TORCH TORCH_VERSION
#endif
#ifndef FAKE_DEVICE
#define FAKE_DEVICE "neuron"
#endif
#ifndef FAKE_NULL
#define FAKE_NULL false
#endif
#ifndef FAKE_BIND
#define FAKE_BIND plugin.bind_rank
#endif

extern "C" __attribute__((visibility("default"))) const trellis_device_plugin_t*
trellis_device_plugin(uint32_t, const char*) {
  static trellis_device_plugin_t plugin = fake_plugin();
  plugin.abi_version = FAKE_ABI;
  plugin.struct_size = FAKE_SIZE;
  plugin.device_type = FAKE_DEVICE;
  plugin.torch_version = FAKE_TORCH;
  plugin.bind_rank = FAKE_BIND;
  return FAKE_NULL ? nullptr : &plugin;
}
