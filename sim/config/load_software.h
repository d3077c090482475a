#pragma once

#include <string>
#include <vector>

#include "sim/config/software_config.h"

namespace trellis::sim {

class Overlay;
struct Parameter;

/// The stacks of sim/configs/software, by name.
[[nodiscard]] const std::vector<SoftwareStack>& software_stacks();
/// The stack that the value of a key `software` names: none, STACK or STACK@RELEASE. Throws
/// ConfigError, with the known names, for others.
[[nodiscard]] SoftwareStack software_stack(const std::string& software);

/// The numbers of a stack at a release, which join `parameters`; neutral ones for "none".
[[nodiscard]] SoftwareConfig load_software(const std::string& software,
                                           std::vector<Parameter>& parameters, Overlay& overlay);

}  // namespace trellis::sim
