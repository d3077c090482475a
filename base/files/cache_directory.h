#pragma once

#include <filesystem>
#include <optional>

namespace trellis {

/// $TRELLIS_CACHE (a directory, or "off"), else $XDG_CACHE_HOME/trellis, else ~/.cache/trellis;
/// none when there is no home either.
[[nodiscard]] std::optional<std::filesystem::path> cache_directory();

}  // namespace trellis
