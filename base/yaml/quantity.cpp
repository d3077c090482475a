#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include "base/yaml/yaml.h"

namespace trellis {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

template <typename Q>
struct Units;

template <>
struct Units<Bytes> {
  static constexpr auto kAll = std::to_array<Unit>({{"B", 1},
                                                    {"kB", 1e3},
                                                    {"KB", 1e3},
                                                    {"MB", 1e6},
                                                    {"GB", 1e9},
                                                    {"TB", 1e12},
                                                    {"KiB", 0x1p10},
                                                    {"MiB", 0x1p20},
                                                    {"GiB", 0x1p30},
                                                    {"TiB", 0x1p40}});
};

template <>
struct Units<Picoseconds> {
  static constexpr auto kAll = std::to_array<Unit>(
      {{"ps", 1}, {"ns", 1e3}, {"us", 1e6}, {"µs", 1e6}, {"ms", 1e9}, {"s", 1e12}});
};

template <>
struct Units<Hertz> {
  static constexpr auto kAll =
      std::to_array<Unit>({{"Hz", 1}, {"kHz", 1e3}, {"MHz", 1e6}, {"GHz", 1e9}});
};

template <>
struct Units<BytesPerSecond> {
  static constexpr auto kAll = std::to_array<Unit>({{"B/s", 1},
                                                    {"kB/s", 1e3},
                                                    {"KB/s", 1e3},
                                                    {"MB/s", 1e6},
                                                    {"GB/s", 1e9},
                                                    {"TB/s", 1e12},
                                                    {"KiB/s", 0x1p10},
                                                    {"MiB/s", 0x1p20},
                                                    {"GiB/s", 0x1p30},
                                                    {"TiB/s", 0x1p40},
                                                    {"bps", 0.125},
                                                    {"kbps", 125},
                                                    {"Mbps", 125e3},
                                                    {"Gbps", 125e6},
                                                    {"Tbps", 125e9}});
};

template <>
struct Units<FlopsPerSecond> {
  static constexpr auto kAll = std::to_array<Unit>(
      {{"FLOPS", 1}, {"MFLOPS", 1e6}, {"GFLOPS", 1e9}, {"TFLOPS", 1e12}, {"PFLOPS", 1e15}});
};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Bytes are counted, so a fraction of one is a mistake; a picosecond is a measure and may be
/// rounded.
template <typename Q>
std::optional<Q> from_base_units(double value) {
  using Rep = decltype(Q::value);
  if constexpr (std::is_integral_v<Rep>) {
    if (value >= static_cast<double>(std::numeric_limits<Rep>::max())) return std::nullopt;
    const double whole = std::round(value);
    if (std::is_same_v<Q, Bytes> && std::abs(whole - value) > 1e-6) return std::nullopt;
    return Q(static_cast<Rep>(whole));
  } else {
    return Q(value);
  }
}

}  // namespace

template <typename Q>
std::optional<Q> parse_quantity(const std::string& text) {
  const std::string_view all = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const std::string_view unit_name =
      trimmed(all.substr(static_cast<std::size_t>(end - all.data())));
  for (const Unit& unit : Units<Q>::kAll) {
    if (unit.name == unit_name) return from_base_units<Q>(number * unit.scale);
  }
  return std::nullopt;
}

template std::optional<Bytes> parse_quantity<Bytes>(const std::string&);
template std::optional<Picoseconds> parse_quantity<Picoseconds>(const std::string&);
template std::optional<Hertz> parse_quantity<Hertz>(const std::string&);
template std::optional<BytesPerSecond> parse_quantity<BytesPerSecond>(const std::string&);
template std::optional<FlopsPerSecond> parse_quantity<FlopsPerSecond>(const std::string&);

}  // namespace trellis
