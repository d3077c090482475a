#include "device/driver/portability.h"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "device/compiler/compile.h"
#include "sim/isa/features.h"

namespace trellis::device {
namespace {

constexpr std::size_t kPlacesShown = 4;

using TypeOf = std::pair<DType, HostType>;

struct Use {
  std::int64_t count = 0;
  std::map<std::string, std::int64_t> places;
};

std::string place(const Scope& scope) {
  if (scope.layer.empty()) return scope.phase;
  return scope.phase.empty() ? scope.layer : scope.phase + " " + scope.layer;
}

std::string_view on_device(const std::string& op, bool lowered, TypeOf type, int core_version) {
  if (!lowered) return "runs on the CPU there: no lowering";
  if (op.starts_with("_copy_from")) return {};  // a conversion at the border, told by the operators that compute with the type
  return lacking(type.first, type.second, core_version);
}

class Collector {
 public:
  void add(const Graph& graph, std::int64_t times) {
    if (times == 0) return;
    for (const Node& node : graph.nodes) {
      std::set<TypeOf> types;
      for (const auto* values : {&node.inputs, &node.outputs}) {
        for (const std::uint32_t v : *values) add_type(types, graph.values[v].view);
      }
      if (node.kind == Node::Kind::kCommWait) continue;
      for (const TypeOf& type : types) note(uses_[{node.op, type}], node.scope, times);
    }
  }

  [[nodiscard]] nlohmann::json rows(int core_version) const {
    std::vector<nlohmann::json> lacking, fine;
    for (const auto& [key, use] : uses_) {
      const bool lowered = is_communication(key.first) || has_lowering(key.first);
      const std::string_view there = on_device(key.first, lowered, key.second, core_version);
      (there.empty() ? fine : lacking).push_back(row(key.first, key.second, use, there));
    }
    lacking.insert(lacking.end(), fine.begin(), fine.end());
    return lacking;
  }

 private:
  static void add_type(std::set<TypeOf>& types, const TensorView& view) {
    const std::size_t dims = view.sizes.size() - (view.host == HostType::kComplex ? 1 : 0);
    if (dims > 0) types.insert({view.dtype, view.host});
  }

  static bool is_communication(const std::string& op) {
    for (int kind = 0; kind <= static_cast<int>(sim::CollectiveKind::kPermute); ++kind) {
      if (op == sim::name(static_cast<sim::CollectiveKind>(kind))) return true;
    }
    return false;
  }

  static void note(Use& use, const Scope& scope, std::int64_t times) {
    use.count += times;
    use.places[place(scope)] += times;
  }

  static nlohmann::json row(const std::string& op, TypeOf type, const Use& use, std::string_view there) {
    std::vector<std::pair<std::int64_t, std::string>> order;
    for (const auto& [text, count] : use.places) order.emplace_back(-count, text);
    std::sort(order.begin(), order.end());
    nlohmann::json places = nlohmann::json::array();
    for (std::size_t i = 0; i < std::min(order.size(), kPlacesShown); ++i) places.push_back(order[i].second);
    return {{"operator", op},
            {"dtype", host_type_name(type.first, type.second)},
            {"count", use.count},
            {"portable", there.empty()},
            {"on_device", there.empty() ? "as here" : std::string(there)},
            {"places", std::move(places)},
            {"num_places", order.size()}};
  }

  std::map<std::pair<std::string, TypeOf>, Use> uses_;
};

}  // namespace

std::string_view lacking(DType dtype, HostType host, int core_version) {
  switch (host) {
    case HostType::kSame: break;
    case HostType::kComplex: return "runs on the CPU there: no complex numbers";
    case HostType::kUnsigned: return "runs on the CPU there: no unsigned integers wider than 8 bits";
    case HostType::kFloat8Fnuz:
    case HostType::kFloat8Scale: return "runs on the CPU there: no such fp8 format";
  }
  switch (dtype) {
    case DType::kFp64: return "computed in fp32 there";
    case DType::kInt64: return "computed in int32 there";
    case DType::kFp8E4M3:  // torch's e4m3fn is OCP's format
      return core_version < sim::isa::first_core_version(DType::kFp8E4M3Fn) ? "computed in the core's own E4M3 there: largest number 240, not 448" : "";
    default: return {};
  }
}

std::string host_type_name(DType dtype, HostType host) {
  const std::string name(sim::isa::name(dtype));
  switch (host) {
    case HostType::kSame: return dtype == DType::kFp8E4M3 ? "fp8e4m3fn" : name;
    case HostType::kComplex: return dtype == DType::kFp64 ? "complex128" : dtype == DType::kFp32 ? "complex64" : "complex32";
    case HostType::kUnsigned: return "u" + name;
    case HostType::kFloat8Fnuz: return name + "fnuz";
    case HostType::kFloat8Scale: return "fp8e8m0fnu";
  }
  return name;
}

nlohmann::json portability(std::span<const GraphRuns> ranks, const std::string& instance, int core_version) {
  Collector collector;
  for (const auto& [graphs, runs] : ranks) {
    for (std::size_t g = 0; g < graphs->size(); ++g) collector.add((*graphs)[g], (*runs)[g]);
  }
  nlohmann::json rows = collector.rows(core_version);
  const auto lacking = std::count_if(rows.begin(), rows.end(), [](const nlohmann::json& row) { return !row.at("portable").get<bool>(); });
  return {{"schema", "trellis.portability/1"}, {"instance", instance}, {"core_version", core_version}, {"lacking", lacking}, {"operators", std::move(rows)}};
}

}  // namespace trellis::device
