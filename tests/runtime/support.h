#pragma once

#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "runtime/ranks/world.h"

namespace trellis::runtime::testing {

using Tensors = std::vector<at::Tensor>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

inline WorldOptions world(int ranks) {
  WorldOptions options;
  options.world_size = ranks;
  options.timeout = std::chrono::milliseconds(20000);
  return options;
}

inline std::vector<int> all_ranks(int n) {
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(r);
  return ranks;
}

/// The same numbers for the same (seed, rank), whatever thread asks.
inline at::Tensor numbers(int rank, at::IntArrayRef sizes, at::ScalarType dtype,
                          std::uint64_t seed = 1) {
  auto generator = at::detail::createCPUGenerator(seed * 1000 + static_cast<std::uint64_t>(rank));
  if (at::isIntegralType(dtype, false))
    return at::randint(-5, 6, sizes, generator, at::kLong).to(dtype);
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

/// One result per rank of a world, written by the rank itself and compared after the run.
class Results {
 public:
  explicit Results(int ranks) : tensors_(static_cast<std::size_t>(ranks)) {}
  void put(int rank, const at::Tensor& tensor) {
    tensors_[static_cast<std::size_t>(rank)] = tensor.clone();
  }
  const at::Tensor& operator[](int rank) const { return tensors_[static_cast<std::size_t>(rank)]; }

 private:
  Tensors tensors_;
};

/// The text and exit code of the Error that `run` throws; fails the test when it throws none.
template <typename Run>
std::pair<std::string, ExitCode> error_of(Run run) {
  try {
    run();
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  ADD_FAILURE() << "expected trellis::Error, got no exception";
  return {};
}

/// Sequential reductions in member order, each partial result rounded to the members' type as it
/// travels, written with plain ATen operations:
/// the oracle.
inline at::Tensor reduced(const Tensors& members, c10d::ReduceOp::RedOpType op) {
  const at::ScalarType dtype = members[0].scalar_type();
  const at::ScalarType wide = at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  at::Tensor result = members[0].to(wide);
  for (std::size_t m = 1; m < members.size(); ++m) {
    const at::Tensor next = members[m].to(wide);
    switch (op) {
      case c10d::ReduceOp::PRODUCT: result = result * next; break;
      case c10d::ReduceOp::MIN: result = at::minimum(result, next); break;
      case c10d::ReduceOp::MAX: result = at::maximum(result, next); break;
      case c10d::ReduceOp::BAND: result = at::bitwise_and(result, next); break;
      case c10d::ReduceOp::BOR: result = at::bitwise_or(result, next); break;
      case c10d::ReduceOp::BXOR: result = at::bitwise_xor(result, next); break;
      default: result = result + next; break;
    }
    result = result.to(dtype).to(wide);
  }
  if (op == c10d::ReduceOp::AVG) {
    const auto n = static_cast<std::int64_t>(members.size());
    result = at::isIntegralType(wide, false) ? at::div(result, n, "trunc").to(wide) : result / n;
  }
  return result.to(dtype);
}

}  // namespace trellis::runtime::testing
