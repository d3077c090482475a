#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/driver/timing/step_stream.h"

/// Encodes the record of a rank as bytes for a session of another process.
namespace trellis::device {

[[nodiscard]] std::string encode(const std::vector<Graph>& graphs);
/// None: the bytes are no graphs.
[[nodiscard]] std::optional<std::vector<Graph>> decode_graphs(std::string_view bytes);

[[nodiscard]] std::string encode(const StepStream& stream);
/// None: the bytes are no stream of graphs that are `graphs`.
[[nodiscard]] std::optional<StepStream> decode_stream(std::string_view bytes,
                                                      const std::vector<Graph>& graphs);

}  // namespace trellis::device
