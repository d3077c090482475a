#include <cstdio>

#include "device/plugin.h"

int main() {
  const trellis_device_plugin_t* plugin =
      trellis_device_plugin(TRELLIS_PLUGIN_ABI_VERSION, MY_TORCH_VERSION);
  if (plugin == nullptr || plugin->abi_version != TRELLIS_PLUGIN_ABI_VERSION) return 1;
  if (plugin->struct_size != sizeof(trellis_device_plugin_t)) return 2;
  std::printf("%s %s\n", plugin->device_type, plugin->provider);
  return 0;
}
