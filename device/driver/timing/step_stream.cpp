#include "device/driver/timing/step_stream.h"

#include <fmt/format.h>

namespace trellis::device {

std::string place_text(const std::vector<RankAxis>& axes, int world_rank) {
  std::string text;
  for (const RankAxis& axis : axes)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.name,
                        world_rank / axis.stride % axis.size);
  return text;
}

}  // namespace trellis::device
