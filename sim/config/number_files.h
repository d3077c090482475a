#pragma once

#include <filesystem>
#include <vector>

namespace trellis::sim {

/// Every file that numbers of a machine are read from, sorted: hardware, software, storage and what
/// was fitted. Where their contents are equal, machines are.
[[nodiscard]] std::vector<std::filesystem::path> number_files();

}  // namespace trellis::sim
