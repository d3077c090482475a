#include "device/aten/state/cpu_generator.h"

#include <c10/util/Exception.h>

#include "device/aten/state/generator.h"
#include "device/aten/state/rank_state.h"

namespace trellis::device {
at::Generator cpu_generator(const at::Generator& given, c10::Device device) {
  const at::Generator& generator = given.defined() ? given : rank_state(device.index()).generator();
  TORCH_CHECK(generator.device() == device, "Expected a '", device,
              "' generator device but found '", generator.device(), "'");
  return drawing_generator(generator);
}

}  // namespace trellis::device
