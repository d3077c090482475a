#include "device/torch_device/operators.h"

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>
#include <nlohmann/json.hpp>

namespace trellis::device {
namespace {

using c10::DispatchKey;
using nlohmann::json;

/// Tensors cannot be made, viewed, moved or read without them; the emulator does not list them.
constexpr std::array<const char*, 7> kAlways{
    "empty.memory_format", "empty_strided", "view",   "as_strided",
    "_local_scalar_dense", "_copy_from",    "resize_"};

enum class Kernel { kThere, kFallsBack, kLacking };

/// Copies that only PrivateUse1 has, and the kernel of attention that the emulator chose: LibTorch
/// chooses each device's.
bool is_of_other_devices(const std::string& op, DispatchKey key) {
  return (op.starts_with("_copy_from") && key != DispatchKey::PrivateUse1) ||
         op.starts_with("_scaled_dot_product_");
}

/// "mm", "aten::mm" → aten::mm; nullopt: no operator of LibTorch, such as a communication.
std::optional<c10::OperatorHandle> find(const std::string& op) {
  const std::string name = op.find("::") == std::string::npos ? "aten::" + op : op;
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

/// A structured operator is computed by its out= variant; the functional form only calls it.
bool has_out_variant(const c10::OperatorHandle& op, DispatchKey key) {
  const std::string& name = op.operator_name().name;
  const std::string base = name.back() == '_' ? name.substr(0, name.size() - 1) : name;
  for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) {
    if (each.name != base || each.overload_name.find("out") == std::string::npos) continue;
    const auto variant = c10::Dispatcher::singleton().findSchema(each);
    if (variant && variant->hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

Kernel kernel_of(const c10::OperatorHandle& op, DispatchKey key) {
  if (op.hasKernelForDispatchKey(key) || has_composite(op)) return Kernel::kThere;
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) &&
      has_out_variant(op, key))
    return Kernel::kThere;
  const auto fallback = c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key);
  return fallback ? Kernel::kFallsBack : Kernel::kLacking;
}

}  // namespace

json check_operators(const json& portability, c10::Device device) {
  const DispatchKey key =
      c10::computeDispatchKey(c10::ScalarType::Float, c10::Layout::Strided, device);
  std::map<std::string, std::set<std::string>> uses;
  for (const char* op : kAlways) uses[op].insert("every step");
  for (const json& row : portability.at("operators")) {
    for (const json& place : row.at("places"))
      uses[row.at("operator").get<std::string>()].insert(place.get<std::string>());
  }
  json lacking = json::array(), falls_back = json::array();
  for (const auto& [name, places] : uses) {
    const auto op = find(name);
    if (!op || is_of_other_devices(name, key)) continue;
    const Kernel kernel = kernel_of(*op, key);
    if (kernel == Kernel::kThere) continue;
    (kernel == Kernel::kLacking ? lacking : falls_back)
        .push_back({{"operator", name}, {"places", places}});
  }
  return {{"schema", "trellis.device_operators/1"},
          {"device", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
          {"operators", uses.size()},
          {"lacking", std::move(lacking)},
          {"falls_back", std::move(falls_back)}};
}

}  // namespace trellis::device
