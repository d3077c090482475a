#include "device/kernels/catalogue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/nearest.h"
#include "device/kernels/builders.h"
#include "sim/isa/features.h"

namespace trellis::device {
namespace {

using sim::isa::DType;

constexpr std::array<std::pair<DType, std::string_view>, 3> kMxNames{
    {{DType::kFp8E4M3FnX4, "mxfp8"},
     {DType::kFp8E5M2X4, "mxfp8_e5m2"},
     {DType::kFp4E2M1X4, "mxfp4"}}};
constexpr double kMxRate = 4;  ///< packed values that the array multiplies at once

KernelSpec matmul_spec() {
  return {"matmul",
          "c[m, n] = a[m, k] · b[k, n]",
          "the product that everything else is measured by; fp32 is exact (four passes of the "
          "array), tf32 reads fp32 operands in one pass; mx operands lie "
          "quantised and packed, with their scales next to them",
          {{"m", 2048, "rows of a and c"},
           {"k", 2048, "the contraction"},
           {"n", 2048, "columns of b and c"},
           {"lhs_transposed", 0,
            "a lies in memory as [k, m], so that the array needs no transposes", true},
           {"rhs_transposed", 0,
            "b lies in memory as [n, k], as the weight of a linear layer does: the array "
            "transposes it on its way in",
            true}},
          {DType::kBf16, DType::kFp16, DType::kFp32, DType::kTf32, DType::kFp8E4M3, DType::kFp8E5M2,
           DType::kFp8E4M3FnX4, DType::kFp8E5M2X4, DType::kFp4E2M1X4},
          {"blocked", "tiled", "hoisted", "blocked_free"},
          {"m"},
          matmul_operands,
          build_matmul};
}

std::vector<KernelSpec> make_catalogue() {
  std::vector<KernelSpec> all{matmul_spec(), quantise_kernel()};
  for (auto group : {elementwise_kernels(), row_kernels(), attention_kernels(), table_kernels(),
                     tile_kernels()}) {
    std::move(group.begin(), group.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<std::string> dtype_names(const KernelSpec& spec) {
  std::vector<std::string> names;
  for (DType d : spec.dtypes) names.emplace_back(dtype_name(d));
  return names;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest_name(word, known);
  return near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
}

/// `value` must be one of `known`; the first one when it is empty.
std::string choose(const std::string& where, const std::string& value,
                   const std::vector<std::string>& known, Problems& problems) {
  if (value.empty()) return known.empty() ? "" : known.front();
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    problems.add(
        where, known.empty()
                   ? fmt::format("\"{}\" given, but this kernel has only one", value)
                   : fmt::format("expected one of {}, got \"{}\"{}", fmt::join(known, ", "), value,
                                 did_you_mean(value, known)));
  }
  return value;
}

void check_sizes(const KernelSpec& spec, KernelRequest& request, Problems& problems) {
  std::vector<std::string> names;
  for (const KernelParameter& p : spec.parameters) {
    names.push_back(p.name);
    const std::int64_t value = request.sizes.try_emplace(p.name, p.value).first->second;
    if (p.flag && value != 0 && value != 1)
      problems.add(spec.name + "." + p.name, fmt::format("expected 0 or 1, got {}", value));
    if (!p.flag && value < (p.value == 0 ? 0 : 1)) {
      problems.add(spec.name + "." + p.name, fmt::format("expected at least {}, got {} ({})",
                                                         p.value == 0 ? 0 : 1, value, p.meaning));
    }
  }
  for (const auto& [given, value] : request.sizes) {
    if (std::find(names.begin(), names.end(), given) != names.end()) continue;
    problems.add(spec.name, fmt::format("has no parameter \"{}\"; it has {}{}", given,
                                        fmt::join(names, ", "), did_you_mean(given, names)));
  }
}

void check_memory(const KernelRequest& request, const sim::SystemConfig& system) {
  double bytes = 0;  // sizes from outside may overflow an integer
  for (const KernelOperand& o : kernel_operands(request, system)) {
    double n = sim::isa::size_bytes(o.dtype);
    for (std::int64_t s : o.sizes) n *= static_cast<double>(s);
    bytes += n;
  }
  const double capacity = static_cast<double>(system.hbm_per_logical_core().value) * request.cores;
  if (bytes <= capacity) return;
  throw Error(ExitCode::kDoesNotFit,
              fmt::format("{}: the operands take {:.0f} bytes ({:.1f} GiB), the HBM of {} core{} "
                          "of {} holds {:.0f} ({:.1f} GiB): make them smaller",
                          request.name, bytes, bytes / (1 << 30), request.cores,
                          request.cores == 1 ? "" : "s", system.instance.name, capacity,
                          capacity / (1 << 30)));
}

KernelInput input_of(const KernelRequest& request, const sim::SystemConfig& system) {
  return {find_kernel(request.name), request, system, parse_dtype(request.dtype).value()};
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [mx, word] : kMxNames) {
    if (mx == dtype) return word;
  }
  return sim::isa::name(dtype);
}

std::optional<DType> parse_dtype(std::string_view word) {
  for (const auto& [mx, its] : kMxNames) {
    if (its == word) return mx;
  }
  const auto dtype = sim::isa::parse_name<DType>(word);
  return dtype && sim::isa::is_mx(*dtype) ? std::nullopt : dtype;
}

std::span<const KernelSpec> kernel_catalogue() {
  static const std::vector<KernelSpec> kAll = make_catalogue();
  return kAll;
}

const KernelSpec& find_kernel(std::string_view name) {
  std::vector<std::string> names;
  for (const KernelSpec& spec : kernel_catalogue()) {
    if (spec.name == name) return spec;
    names.push_back(spec.name);
  }
  throw ConfigError(fmt::format("unknown kernel \"{}\"{}; known: {}", name,
                                did_you_mean(name, names), fmt::join(names, ", ")));
}

KernelRequest complete(const KernelRequest& request, const sim::SystemConfig& system) {
  const KernelSpec& spec = find_kernel(request.name);
  KernelRequest out = request;
  Problems problems;
  out.dtype = choose(spec.name + ".dtype", request.dtype, dtype_names(spec), problems);
  const auto dtype = parse_dtype(out.dtype);
  if (dtype && system.chip.core.limits.core_version < sim::isa::first_core_version(*dtype)) {
    problems.add(spec.name + ".dtype",
                 fmt::format("{} has no {}: NeuronCore-v{} or later does", system.chip.generation,
                             out.dtype, sim::isa::first_core_version(*dtype)));
  }
  out.variant = choose(spec.name + ".variant", request.variant, spec.variants, problems);
  check_sizes(spec, out, problems);
  if (request.cores != 1 && request.cores != 2)
    problems.add(spec.name + ".cores", fmt::format("expected 1 or 2, got {}", request.cores));
  if (request.cores == 2 && system.chip.cores_per_hbm_stack < 2) {
    problems.add(
        spec.name + ".cores",
        system.chip.generation + " has no logical cores of two physical ones: leave it at 1");
  }
  problems.throw_if_any();
  check_memory(out, system);
  return out;
}

std::vector<KernelRequest> split_over_cores(const KernelRequest& request) {
  if (request.cores == 1) return {request};
  const KernelSpec& spec = find_kernel(request.name);
  KernelRequest half = request;
  half.cores = 1;
  for (const std::string& parameter : spec.split) {
    const std::int64_t size = request.sizes.at(parameter);
    if (size % 2 != 0) continue;
    half.sizes[parameter] = size / 2;
    // Query heads take their key heads along.
    if (parameter == "heads" && request.sizes.at("kv_heads") % 2 == 0) half.sizes["kv_heads"] /= 2;
    return {half, half};
  }
  throw ConfigError(fmt::format(
      "{}: two cores share the work over {}, of which none is even: change one, or use one core",
      spec.name, fmt::join(spec.split, " or ")));
}

std::vector<KernelOperand> kernel_operands(const KernelRequest& request,
                                           const sim::SystemConfig& system) {
  const KernelInput input = input_of(request, system);
  return input.spec.operands(input);
}

BuiltKernel build_kernel(const KernelRequest& request, const sim::SystemConfig& system) {
  const KernelInput input = input_of(request, system);
  return input.spec.build(input, input.spec.operands(input));
}

FlopsPerSecond peak_rate(DType dtype, const sim::SystemConfig& system) {
  if (dtype == DType::kFp32) return system.chip.peak_fp32_core;
  if (sim::isa::is_mx(dtype)) return system.chip.peak_bf16_core * kMxRate;
  const bool double_row =
      sim::isa::is_fp8(dtype) && system.chip.core.limits.core_version >=
                                     sim::isa::first_core_version(sim::isa::MatmulMode::kDoubleRow);
  return system.chip.peak_bf16_core * (double_row ? 2.0 : 1.0);
}

}  // namespace trellis::device
