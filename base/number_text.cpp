#include "base/number_text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

namespace trellis {

std::string thousands(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > (n < 0 ? 1 : 0);
       i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string rate_text(double per_s) {
  const double unit =
      per_s < 1 ? 1 : std::pow(10, std::max(0.0, std::floor(std::log10(per_s)) - 3));
  return thousands(static_cast<std::int64_t>(std::round(per_s / unit) * unit));
}

std::string human_bytes(std::int64_t bytes) {
  const double b = static_cast<double>(bytes);
  const auto in = [&](double unit, const char* name) {
    return fmt::format("{:.{}f} {}", b / unit, b < 100 * unit ? 2 : 1, name);
  };
  if (bytes >= (1LL << 40)) return in(1LL << 40, "TiB");
  if (bytes >= (1LL << 30)) return in(1LL << 30, "GiB");
  if (bytes >= (1LL << 20)) return in(1LL << 20, "MiB");
  return thousands(bytes) + " B";
}

}  // namespace trellis
