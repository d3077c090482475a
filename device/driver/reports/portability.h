#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "device/driver/record/operator_uses.h"

namespace trellis::device {

/// How the hardware would treat a host type that a core of this version (2, 3, 4) lacks; empty: it
/// has the type.
[[nodiscard]] std::string_view lacking(DType dtype, HostType host, int core_version);
/// "fp64", "complex64", "uint32", "fp8e4m3fnuz": the host program's word.
[[nodiscard]] std::string host_type_name(DType dtype, HostType host);

/// Report of the operators that ran with their types, how often and where, and what the machine
/// would do with each; schema trellis.portability/1. Rows that the machine does not have come
/// first.
[[nodiscard]] nlohmann::json portability(const OperatorUses& uses, const std::string& instance,
                                         int core_version);

}  // namespace trellis::device
