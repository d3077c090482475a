#include "device/driver/reports/portability.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "device/compiler/compile.h"
#include "sim/isa/features.h"

namespace trellis::device {
namespace {

constexpr std::size_t kPlacesShown = 4;

using TypeOf = OperatorUses::TypeOf;

std::string_view on_device(const std::string& op, bool lowered, TypeOf type, int core_version) {
  if (!lowered) return "runs on the CPU there: no lowering";
  if (op.starts_with("_copy_from"))
    return {};  // a conversion at the border, reported by the operators that compute with the type
  return lacking(type.first, type.second, core_version);
}

bool is_communication(const std::string& op) {
  for (int kind = 0; kind <= static_cast<int>(sim::CollectiveKind::kPermute); ++kind) {
    if (op == sim::name(static_cast<sim::CollectiveKind>(kind))) return true;
  }
  return false;
}

nlohmann::json row(const std::string& op, TypeOf type, const OperatorUses::Use& use,
                   std::string_view there) {
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [text, count] : use.places) order.emplace_back(-count, text);
  std::sort(order.begin(), order.end());
  nlohmann::json places = nlohmann::json::array();
  for (std::size_t i = 0; i < std::min(order.size(), kPlacesShown); ++i)
    places.push_back(order[i].second);
  return {{"operator", op},
          {"dtype", host_type_name(type.first, type.second)},
          {"count", use.count},
          {"portable", there.empty()},
          {"on_device", there.empty() ? "as here" : std::string(there)},
          {"places", std::move(places)},
          {"num_places", order.size()}};
}

/// Those that the machine does not have come first.
nlohmann::json rows(const OperatorUses& uses, int core_version) {
  std::vector<nlohmann::json> lacking, fine;
  for (const auto& [key, use] : uses.uses()) {
    const bool lowered = is_communication(key.first) || has_lowering(key.first);
    const std::string_view there = on_device(key.first, lowered, key.second, core_version);
    (there.empty() ? fine : lacking).push_back(row(key.first, key.second, use, there));
  }
  lacking.insert(lacking.end(), fine.begin(), fine.end());
  return lacking;
}

}  // namespace

std::string_view lacking(DType dtype, HostType host, int core_version) {
  switch (host) {
    case HostType::kSame: break;
    case HostType::kComplex: return "runs on the CPU there: no complex numbers";
    case HostType::kUnsigned:
      return "runs on the CPU there: no unsigned integers wider than 8 bits";
    case HostType::kFloat8Fnuz:
    case HostType::kFloat8Scale: return "runs on the CPU there: no such fp8 format";
  }
  switch (dtype) {
    case DType::kFp64: return "computed in fp32 there";
    case DType::kInt64: return "computed in int32 there";
    case DType::kFp8E4M3:  // torch's e4m3fn is OCP's format
      return core_version < sim::isa::first_core_version(DType::kFp8E4M3Fn)
                 ? "computed in the core's own E4M3 there: largest number 240, not 448"
                 : "";
    default: return {};
  }
}

std::string host_type_name(DType dtype, HostType host) {
  const std::string name(sim::isa::name(dtype));
  switch (host) {
    case HostType::kSame: return dtype == DType::kFp8E4M3 ? "fp8e4m3fn" : name;
    case HostType::kComplex:
      return dtype == DType::kFp64   ? "complex128"
             : dtype == DType::kFp32 ? "complex64"
                                     : "complex32";
    case HostType::kUnsigned: return "u" + name;
    case HostType::kFloat8Fnuz: return name + "fnuz";
    case HostType::kFloat8Scale: return "fp8e8m0fnu";
  }
  return name;
}

nlohmann::json portability(const OperatorUses& uses, const std::string& instance,
                           int core_version) {
  nlohmann::json rows = device::rows(uses, core_version);
  const auto lacking = std::count_if(rows.begin(), rows.end(), [](const nlohmann::json& row) {
    return !row.at("portable").get<bool>();
  });
  return {{"schema", "trellis.portability/1"},
          {"instance", instance},
          {"core_version", core_version},
          {"lacking", lacking},
          {"operators", std::move(rows)}};
}

}  // namespace trellis::device
