#pragma once

#include <cstdint>
#include <string>

/// Numbers as people read them.
namespace trellis {

/// "12.3 GiB", "4,096 B".
[[nodiscard]] std::string human_bytes(std::int64_t bytes);
/// A rate, to four digits: 460187.3 → "460,200".
[[nodiscard]] std::string rate_text(double per_s);
/// 1234567 → "1,234,567".
[[nodiscard]] std::string thousands(std::int64_t n);

}  // namespace trellis
