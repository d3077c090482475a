#pragma once

#include <string>
#include <string_view>

namespace trellis::sim {

/// True: `bytes` begin as a file of xz does.
[[nodiscard]] bool is_xz(std::string_view bytes);
/// Unpacks an xz file. Throws ConfigError "where: …" when it is cut off, damaged, or would
/// unpack to more than `most` bytes.
[[nodiscard]] std::string unpack_xz(std::string_view bytes, const std::string& where,
                                    std::size_t most);

}  // namespace trellis::sim
