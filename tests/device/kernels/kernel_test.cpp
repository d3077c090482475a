#include "device/kernels/kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/error.h"
#include "device/kernels/catalogue.h"
#include "device/kernels/kernel_report.h"
#include "sim/config/load_system.h"
#include "sim/isa/features.h"

#include <nlohmann/json.hpp>

namespace trellis::device {
namespace {

sim::SystemConfig machine(const std::string& instance, std::vector<std::string> overrides = {}) {
  return sim::load_system(instance, {.logical_core_size = 1, .overrides = std::move(overrides)});
}

KernelTiming time(const KernelRequest& request, const sim::SystemConfig& system) {
  sim::Simulator simulator(system);
  return time_kernel(request, system, simulator);
}

/// A kernel with small random sizes that it accepts, in a dtype that the machine has.
KernelRequest random_request(const KernelSpec& spec, const sim::SystemConfig& system,
                             std::mt19937& random) {
  KernelRequest request;
  request.name = spec.name;
  for (const KernelParameter& p : spec.parameters) {
    if (p.flag) {
      request.sizes[p.name] = static_cast<std::int64_t>(random() % 2);
    } else if (p.name == "d") {
      request.sizes[p.name] = 32 << (random() % 3);
    } else if (p.name == "kv_heads" || p.name == "batch" || p.name == "k") {
      request.sizes[p.name] =
          spec.name == "matmul" ? 1 + static_cast<std::int64_t>(random() % 1500) : 1;
    } else if (p.name == "window") {
      request.sizes[p.name] = 0;
    } else if (p.name == "heads") {
      request.sizes[p.name] = 1 + static_cast<std::int64_t>(random() % 3);
    } else if (spec.name == "tiled_add") {
      continue;  // its tiles must cut its elements
    } else {
      request.sizes[p.name] =
          1 + static_cast<std::int64_t>(random() % (p.name == "elements" ? 3'000'000
                                                    : p.name == "tiles"  ? 64
                                                                         : 1500));
    }
  }
  std::vector<sim::isa::DType> dtypes = spec.dtypes;
  std::erase_if(dtypes, [&](sim::isa::DType d) {
    return sim::isa::first_core_version(d) > system.chip.core.limits.core_version;
  });
  const sim::isa::DType dtype = dtypes[random() % dtypes.size()];
  request.dtype = std::string(dtype_name(dtype));
  if (sim::isa::is_mx(dtype))
    request.sizes["k"] *= 32, request.sizes["lhs_transposed"] = request.sizes["rhs_transposed"] = 0;
  return request;
}

std::string text(const KernelRequest& r) {
  std::string out = r.name + " " + r.dtype;
  for (const auto& [name, value] : r.sizes) out += " " + name + "=" + std::to_string(value);
  return out;
}

/// FLOP per second of a square product.
double rate_of_square(std::int64_t size, bool lhs_transposed, bool rhs_transposed,
                      const sim::SystemConfig& system, sim::Simulator& simulator) {
  KernelRequest request;
  request.name = "matmul";
  request.sizes = {{"m", size},
                   {"k", size},
                   {"n", size},
                   {"lhs_transposed", lhs_transposed ? 1 : 0},
                   {"rhs_transposed", rhs_transposed ? 1 : 0}};
  const double seconds = to_seconds(time_kernel(request, system, simulator).device_time);
  return 2 * std::pow(static_cast<double>(size), 3) / seconds;
}

/// Between the published sizes, at multiples of the array's 128: no size is far off the rate of its
/// neighbours. Below 1,152 the rate bends more than that by itself. Plans are chosen by numbers of
/// simulated products of Trn1, and the array's clock goes up in steps of 3.4 µs.
TEST(Kernel, ProductsHaveNoJumps) {
  constexpr std::int64_t kFirst = 1152, kLast = 4608;
  const sim::SystemConfig system = machine("trn2.48xlarge");
  sim::Simulator simulator(system);
  for (const auto& [lhs, rhs] : {std::pair{true, false}, {false, false}, {false, true}}) {
    std::vector<double> rates;
    for (std::int64_t size = kFirst; size <= kLast; size += 128)
      rates.push_back(rate_of_square(size, lhs, rhs, system, simulator));
    for (std::size_t i = 1; i + 1 < rates.size(); ++i) {
      EXPECT_NEAR(rates[i] / ((rates[i - 1] + rates[i + 1]) / 2), 1, 0.04)
          << kFirst + 128 * static_cast<std::int64_t>(i) << ", lhs_transposed " << lhs
          << ", rhs_transposed " << rhs;
    }
  }
}

/// Nothing is faster than the array's peak, the HBM's and the DMA engines' bandwidth.
TEST(Kernel, NoBoundIsBeaten) {
  std::mt19937 random(5);
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge", "trn3-gen1"}) {
    const sim::SystemConfig system = machine(instance);
    sim::Simulator simulator(system);
    for (const KernelSpec& spec : kernel_catalogue()) {
      const KernelTiming t = time_kernel(random_request(spec, system, random), system, simulator);
      const double seconds = to_seconds(t.device_time);
      EXPECT_LE(t.mfu, 1) << text(t.request);
      EXPECT_GE(t.device_time, t.compute_bound) << text(t.request);
      EXPECT_GE(t.device_time, t.memory_bound) << text(t.request);
      EXPECT_LE(static_cast<double>(t.dma_bytes.value),
                seconds * system.chip.core.dma.engines * system.chip.core.dma.engine_rate.value)
          << text(t.request);
      EXPECT_GE((t.hbm_read + t.hbm_written).value, t.operand_bytes.value) << text(t.request);
      for (const Picoseconds busy : t.busy) EXPECT_LE(busy, t.device_time) << text(t.request);
    }
  }
}

TEST(Kernel, MatmulsOfAnyShapeFit) {
  std::mt19937 random(9);
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge", "trn3-gen1"}) {
    const sim::SystemConfig system = machine(instance);
    for (int i = 0; i < 60; ++i) {
      KernelRequest request{"matmul",
                            {{"lhs_transposed", static_cast<std::int64_t>(random() % 2)},
                             {"rhs_transposed", static_cast<std::int64_t>(random() % 2)}},
                            i % 3 == 0 ? "fp32" : "bf16",
                            "",
                            1};
      for (const char* size : {"m", "k", "n"})
        request.sizes[size] = 1 + static_cast<std::int64_t>(random() % (i % 2 == 0 ? 9000 : 1200));
      EXPECT_NO_THROW((void)build_kernel(complete(request, system), system)) << text(request);
    }
  }
}

/// Within 2 %: an engine that is done earlier may start its stores just when loads are under way.
TEST(Kernel, FasterHardwareSlowsNothing) {
  const std::vector<std::string> faster{
      "core.dma.engine_rate=46 GB/s", "chip.hbm_bandwidth=5.8 TB/s", "core.vector.clock=1.92 GHz",
      "core.scalar.clock=2.4 GHz",    "core.gpsimd.clock=2.4 GHz",   "core.tensor.clock=4.8 GHz"};
  const std::vector<KernelRequest> requests{
      {"matmul", {{"m", 512}, {"k", 640}, {"n", 1024}}, "bf16", "tiled", 1},
      {"add", {{"elements", 1 << 20}}, "bf16", "", 1},
      {"transpose", {{"rows", 500}, {"columns", 700}}, "fp32", "", 1}};
  for (KernelRequest request : requests) {
    if (request.name == "matmul")
      request.sizes = {{"m", 512}, {"k", 768}, {"n", 1024}, {"lhs_transposed", 1}};
    const double before = to_seconds(time(request, machine("trn2.48xlarge")).device_time);
    for (const std::string& one : faster)
      EXPECT_LE(to_seconds(time(request, machine("trn2.48xlarge", {one})).device_time),
                1.02 * before)
          << text(request) << " " << one;
  }
}

/// The array multiplies packed operands four times as fast, and operands and results are hidden by
/// it.
TEST(Kernel, MxProductsReachFourTimesTheRate) {
  const sim::SystemConfig system = machine("trn3-gen1");
  const std::map<std::string, std::int64_t> sizes{{"m", 2048}, {"k", 4096}, {"n", 2048}};
  const KernelTiming bf16 = time({"matmul", sizes, "bf16", "", 1}, system);
  for (const char* dtype : {"mxfp8", "mxfp8_e5m2", "mxfp4"}) {
    const KernelTiming mx = time({"matmul", sizes, dtype, "", 1}, system);
    EXPECT_EQ(mx.peak.value, 4 * bf16.peak.value);
    EXPECT_EQ(mx.flops, bf16.flops);
    EXPECT_LT(3 * mx.device_time.value, bf16.device_time.value) << dtype;
    EXPECT_LE(4 * mx.busy[0].value, 1.02 * static_cast<double>(bf16.busy[0].value)) << dtype;
  }
  const KernelTiming narrow = time({"matmul", sizes, "mxfp4", "", 1}, system),
                     wide = time({"matmul", sizes, "mxfp8", "", 1}, system);
  EXPECT_EQ((wide.operand_bytes - narrow.operand_bytes).value, (2048 + 2048) * 4096 / 2);
}

TEST(Kernel, TwoCoresShareTheWork) {
  const sim::SystemConfig system = machine("trn2.48xlarge");
  KernelRequest request{"matmul", {{"m", 2048}, {"k", 1024}, {"n", 2048}}, "bf16", "", 1};
  const KernelTiming one = time(request, system);
  request.cores = 2;
  const KernelTiming two = time(request, system);
  EXPECT_EQ(two.flops, one.flops);
  EXPECT_EQ(two.peak.value, 2 * one.peak.value);
  EXPECT_LT(two.device_time, one.device_time);
  EXPECT_GT(two.device_time.value, one.device_time.value / 2);
}

/// Blocks of keys outside a sliding window are skipped, in both passes.
TEST(Kernel, AWindowCostsWhatItSees) {
  const sim::SystemConfig system = machine("trn2.48xlarge");
  for (const char* name : {"flash_attention", "flash_attention_backward"}) {
    KernelRequest request{name, {{"queries", 8192}, {"keys", 8192}, {"d", 64}}, "bf16", "", 1};
    const KernelTiming all = time(request, system);
    double wider = to_seconds(all.device_time);
    for (const std::int64_t window : {2048, 700, 77}) {
      request.sizes["window"] = window;
      const KernelTiming t = time(request, system);
      EXPECT_LT(to_seconds(t.device_time), wider) << name << " " << window;
      EXPECT_LT(t.flops, all.flops) << name << " " << window;
      wider = to_seconds(t.device_time);
    }
    EXPECT_LT(wider, 0.65 * to_seconds(all.device_time)) << name;
  }
}

/// Each core gets the key heads of its query heads.
TEST(Kernel, CoresShareKeyHeadsToo) {
  const sim::SystemConfig system = machine("trn2.48xlarge");
  const std::map<std::string, std::int64_t> half{
      {"heads", 2}, {"kv_heads", 2}, {"queries", 512}, {"keys", 512}};
  std::map<std::string, std::int64_t> whole = half;
  whole["heads"] = whole["kv_heads"] = 4;
  const KernelTiming one = time({"flash_attention", half, "bf16", "", 1}, system);
  const KernelTiming two = time({"flash_attention", whole, "bf16", "", 2}, system);
  EXPECT_EQ(two.flops, 2 * one.flops);
  EXPECT_EQ(two.dma_bytes.value, 2 * one.dma_bytes.value);
}

/// How much a benchmark's loop adds is one number of the machine, the same for every kernel.
/// Compiled graphs see a logical core as one core of twice the speed: held against the two cores
/// that it represents.
TEST(Kernel, ALogicalCoreIsTimedLikeItsPair) {
  for (const char* name :
       {"matmul", "softmax", "rms_norm", "silu_mul", "adamw", "flash_attention"}) {
    KernelRequest request;
    request.name = name;
    request.cores = 2;
    if (request.name == "flash_attention") request.sizes["heads"] = 4;
    const double pair = to_microseconds(time(request, machine("trn2.48xlarge")).device_time);
    const sim::SystemConfig logical = sim::load_system("trn2.48xlarge");
    request.cores = 1;
    sim::Simulator simulator(logical);
    double together = to_microseconds(logical.launch.program_start);
    for (const auto& segment :
         simulator.time_program(build_kernel(complete(request, logical), logical).program).segments)
      together += to_microseconds(segment.duration);
    EXPECT_NEAR(together / pair, 1, 0.2) << name << ": pair " << pair << " us";
  }
}

TEST(Kernel, BenchmarkOverheadIsConstant) {
  const sim::SystemConfig system = machine("trn2.48xlarge");
  sim::Simulator simulator(system);
  for (const char* name : {"matmul", "add", "softmax"}) {
    const KernelTiming t = time_kernel({name, {}, "", "", 1}, system, simulator);
    EXPECT_EQ(t.benchmark_time - t.device_time, system.launch.benchmark_overhead) << name;
  }
}

std::string problem(const KernelRequest& request, const std::string& instance,
                    ExitCode code = ExitCode::kConfig) {
  try {
    const sim::SystemConfig system = machine(instance);
    for (const KernelRequest& part : split_over_cores(complete(request, system)))
      (void)build_kernel(part, system);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

TEST(Kernel, MistakesAreNamed) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(problem({"matmull", {}, "", "", 1}, "trn2.48xlarge"), "\"matmul\""));
  EXPECT_TRUE(has(problem({"matmul", {{"m", 0}}, "", "", 1}, "trn2.48xlarge"),
                  "matmul.m: expected at least 1, got 0"));
  EXPECT_TRUE(
      has(problem({"matmul", {{"rows", 3}}, "", "", 1}, "trn2.48xlarge"), "no parameter \"rows\""));
  EXPECT_TRUE(has(problem({"matmul", {}, "bf61", "", 1}, "trn2.48xlarge"), "\"bf16\""));
  EXPECT_TRUE(has(problem({"matmul", {}, "", "tilde", 1}, "trn2.48xlarge"), "\"tiled\""));
  EXPECT_TRUE(has(problem({"matmul", {}, "", "", 2}, "trn1.32xlarge"), "no logical cores of two"));
  EXPECT_TRUE(
      has(problem({"matmul", {}, "mxfp8", "", 1}, "trn2.48xlarge"), "has no mxfp8: NeuronCore-v4"));
  EXPECT_TRUE(has(problem({"matmul", {{"k", 100}}, "mxfp4", "", 1}, "trn3-gen1"),
                  "multiple of it, got 100"));
  for (const char* side : {"lhs_transposed", "rhs_transposed"}) {
    EXPECT_TRUE(
        has(problem({"matmul", {{side, 1}}, "mxfp4", "", 1}, "trn3-gen1"), "one layout only"))
        << side;
  }
  EXPECT_TRUE(
      has(problem({"matmul", {{"lhs_transposed", 1}, {"rhs_transposed", 1}}, "", "tiled", 1},
                  "trn2.48xlarge"),
          "without --rhs-transposed"));
  EXPECT_TRUE(has(problem({"matmul", {}, "mxfp8", "tiled", 1}, "trn3-gen1"), "got \"tiled\""));
  EXPECT_TRUE(has(problem({"matmul", {}, "fp8e4m3fn_x4", "", 1}, "trn3-gen1"), "expected one of"));
  for (const char* kernel : {"flash_attention", "flash_attention_backward"}) {
    EXPECT_TRUE(has(problem({kernel, {{"heads", 7}, {"kv_heads", 3}}, "", "", 1}, "trn2.48xlarge"),
                    "kv_heads: expected a divisor of the 7 query heads, got 3"));
    EXPECT_TRUE(has(problem({kernel, {{"d", 129}}, "", "", 1}, "trn2.48xlarge"),
                    "d: expected at most 128"));
  }
  EXPECT_TRUE(has(problem({"routing", {{"k", 65}}, "", "", 1}, "trn2.48xlarge"),
                  "routing.k: expected at most the 64 experts, got 65"));
  for (const std::int64_t free :
       {std::int64_t{1} << 57,
        std::numeric_limits<std::int64_t>::max()}) {  // 128 times either is no int64
    EXPECT_TRUE(has(problem({"tiled_add", {{"free", free}}, "", "", 1}, "trn2.48xlarge"),
                    "must cut 25600 elements evenly"));
  }
  EXPECT_TRUE(
      has(problem({"tiled_add", {{"elements", 128'000'000}, {"free", 1'000'000}}, "", "", 1},
                  "trn2.48xlarge"),
          "an eighth of a partition"));
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(has(problem({"embedding", {{"tokens", huge}, {"width", huge}}, "", "", 1},
                          "trn2.48xlarge", ExitCode::kDoesNotFit),
                  "GiB"));
  EXPECT_TRUE(has(problem({"add", {{"elements", 1ll << 40}}, "", "", 1}, "trn2.48xlarge",
                          ExitCode::kDoesNotFit),
                  "6597069766656 bytes"));
}

/// A trace's stretches of work add up to what the engines were busy, and the times are those of an
/// untraced run.
TEST(Kernel, PiecesAddUp) {
  const sim::SystemConfig system = machine("trn2.48xlarge");
  sim::Simulator simulator(system);
  const KernelRequest request{"softmax", {{"rows", 1024}, {"columns", 512}}, "bf16", "", 1};
  const KernelTiming plain = time_kernel(request, system, simulator),
                     traced = time_kernel(request, system, simulator, {.pieces = true});
  EXPECT_EQ(plain.device_time, traced.device_time);
  std::array<Picoseconds, sim::kNumTracks> busy{};
  for (const sim::KernelSlice& piece : traced.cores[0].segments[0].pieces)
    busy[piece.track] += piece.busy;
  EXPECT_EQ(busy, traced.busy);
  EXPECT_TRUE(plain.cores[0].segments[0].pieces.empty());
  EXPECT_GT(kernel_timeline(traced).num_slices(), kernel_timeline(plain).num_slices());
}

TEST(Kernel, ReportsHaveEveryKernel) {
  EXPECT_EQ(catalogue_json().at("kernels").size(), kernel_catalogue().size());
  const sim::SystemConfig system = machine("trn2.48xlarge");
  const KernelTiming t = time({"matmul", {}, "", "", 1}, system);
  const nlohmann::json json = timing_json(t, "trn2.48xlarge");
  EXPECT_EQ(json.at("schema"), "trellis.kernel/1");
  EXPECT_NEAR(json.at("device_mfu").get<double>(),
              static_cast<double>(t.flops) / to_seconds(t.device_time) / t.peak.value, 1e-9);
  EXPECT_GT(kernel_timeline(t).num_slices(), 4u);
}

}  // namespace
}  // namespace trellis::device
