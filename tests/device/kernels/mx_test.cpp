#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "device/kernels/catalogue.h"
#include "sim/config/load_system.h"
#include "sim/sim.h"
#include "tests/device/compiler/numbers.h"

namespace trellis::device::testing {
namespace {

sim::SystemConfig machine(const std::string& instance) {
  return sim::load_system(instance, {.logical_core_size = 1, .overrides = {}});
}

KernelRequest quantise(std::int64_t rows, std::int64_t columns, const std::string& variant,
                       const std::string& dtype = "bf16") {
  return {"quantise", {{"rows", rows}, {"columns", columns}}, dtype, variant, 1};
}

Values bf16_numbers(std::int64_t n) {
  std::mt19937 random(4);
  std::normal_distribution<double> draw(0, 1);
  Values out;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint8_t bytes[2];
    encode(DType::kBf16, draw(random) * std::exp2(i / 4 % 7 - 3.0),
           bytes);  // rows of different sizes
    out.push_back(decode(DType::kBf16, bytes));
  }
  return out;
}

/// The largest of 32 has the format's largest exponent, and every number is near what it was.
void check_numbers(std::int64_t rows, std::int64_t columns, const std::string& variant) {
  const sim::SystemConfig system = machine("trn3-gen1");
  const KernelRequest request = complete(quantise(rows, columns, variant), system);
  const auto program = build_kernel(request, system).program;
  for (const auto& v : sim::isa::validate(program, system.chip.core.limits))
    ADD_FAILURE() << v.text;
  const DType packed = parse_dtype(variant).value();
  const MiniFloat format = mx_format(packed);
  const Values x = bf16_numbers(rows * columns);
  for (std::uint32_t seed : {0u, 1u}) {
    Interpreter run(program, system.chip.core.limits, in_double(seed));
    run.write(0, DType::kBf16, x);
    run.run();
    const Values out = run.read(1, packed, rows * columns / 4),
                 scales = run.read(2, DType::kUInt8, rows * columns / 32);
    for (std::int64_t group = 0; group < columns / 32; ++group) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const double scale = mx_scale(scales[static_cast<std::size_t>(group * rows + r)]);
        double largest = 0;
        for (std::int64_t i = 0; i < 32; ++i) {
          const std::int64_t at = (group * 8 + i / 4) * rows + r;
          const double want = x[static_cast<std::size_t>(at * 4 + i % 4)];
          const double got =
              unpack(packed, static_cast<std::uint32_t>(out[static_cast<std::size_t>(at)]),
                     static_cast<int>(i % 4)) *
              scale;
          largest = std::max(largest, std::abs(want));
          ASSERT_NEAR(got, want,
                      std::abs(want) / (2 << format.mantissa) +
                          std::max(0.0, std::abs(want) - format.most * scale) +
                          std::ldexp(scale, -format.bias - format.mantissa))
              << at;
        }
        ASSERT_EQ(std::ilogb(largest / scale), std::ilogb(format.most)) << group << " " << r;
      }
    }
  }
}

TEST(QuantiseMx, Numbers) { check_numbers(300, 1024, "mxfp8"); }
TEST(QuantiseMx, RestsOfBothSizes) { check_numbers(2100, 608, "mxfp8_e5m2"); }

/// The results of quantise are valid operands of matmul.
TEST(QuantiseMx, FeedsTheProduct) {
  const sim::SystemConfig system = machine("trn3-gen1");
  const auto left = kernel_operands(complete(quantise(96, 512, "mxfp8"), system), system);
  const auto taken = kernel_operands(
      complete({"matmul", {{"m", 96}, {"k", 512}, {"n", 64}}, "mxfp8", "", 1}, system), system);
  for (std::size_t i : {0u, 1u}) {
    EXPECT_EQ(left[1 + i].sizes, taken[i].sizes);
    EXPECT_EQ(left[1 + i].dtype, taken[i].dtype);
  }
}

std::string problem(const KernelRequest& request, const std::string& instance) {
  try {
    (void)complete(request, machine(instance));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(QuantiseMx, MistakesAreNamed) {
  EXPECT_NE(problem(quantise(64, 64, "mxfp8"), "trn2.48xlarge").find("has no mxfp8: NeuronCore-v4"),
            std::string::npos);
  EXPECT_NE(problem(quantise(64, 65, "mxfp8"), "trn3-gen1").find("multiple of it, got 65"),
            std::string::npos);
  EXPECT_NE(
      problem(quantise(64, 64, "mxfp8", "fp32"), "trn3-gen1").find("takes bf16 or fp16, got fp32"),
      std::string::npos);
  EXPECT_NE(problem(quantise(64, 64, "mxfp4"), "trn3-gen1")
                .find("expected one of fp8e4m3, mxfp8, mxfp8_e5m2"),
            std::string::npos);
}

}  // namespace
}  // namespace trellis::device::testing
