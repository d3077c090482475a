#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/compiler/graph.h"

namespace trellis::device {

/// A rank's distinct graphs and how often each ran.
using GraphRuns = std::pair<const std::vector<Graph>*, const std::vector<std::int64_t>*>;

/// What the hardware would do with a host type, for a core of this version (2, 3, 4); empty: it has the type.
[[nodiscard]] std::string_view lacking(DType dtype, HostType host, int core_version);
/// "fp64", "complex64", "uint32", "fp8e4m3fnuz": the host program's word.
[[nodiscard]] std::string host_type_name(DType dtype, HostType host);

/// Which operators ran with which types, how often and where, and what the machine would do with each; schema trellis.portability/1.
/// Rows that it lacks come first. Numbers without dimensions are left out: the real device keeps them on the host.
[[nodiscard]] nlohmann::json portability(std::span<const GraphRuns> ranks, const std::string& instance, int core_version);

}  // namespace trellis::device
