#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/kernels/kernel.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::device {

struct KernelParameter {
  std::string name;
  std::int64_t value = 1;  ///< when it is not given
  std::string meaning;
  bool flag = false;  ///< 0 or 1
};

/// A tensor in HBM that a kernel reads or writes, contiguous.
struct KernelOperand {
  std::string name;
  std::vector<std::int64_t> sizes;
  sim::isa::DType dtype = sim::isa::DType::kFp32;
  bool output = false;
  std::int64_t moved = -1;  ///< elements that must move at least; −1: all
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t elements_moved() const { return moved < 0 ? elements() : moved; }
  [[nodiscard]] std::int64_t bytes() const { return elements() * sim::isa::size_bytes(dtype); }
};

/// A kernel as a program for one core.
struct BuiltKernel {
  sim::isa::Program program;
  std::int64_t flops = 0;
  std::vector<std::string> estimated;
};

struct KernelSpec;
/// A complete request, and the core that it is for.
struct KernelInput {
  const KernelSpec& spec;
  const KernelRequest& request;
  const sim::SystemConfig& system;
  sim::isa::DType dtype;
  [[nodiscard]] std::int64_t size(const std::string& parameter) const {
    return request.sizes.at(parameter);
  }
  [[nodiscard]] bool flag(const std::string& parameter) const { return size(parameter) != 0; }
  [[nodiscard]] const sim::CoreConfig& core() const { return system.chip.core; }
};

/// One kernel of the catalogue.
struct KernelSpec {
  std::string name;
  std::string formula;
  std::string purpose;
  std::vector<KernelParameter> parameters;
  std::vector<sim::isa::DType> dtypes;  ///< the first one is the default
  std::vector<std::string>
      variants;  ///< loop orders; the first one is the default; empty: there is one
  std::vector<std::string>
      split;  ///< parameters over which two cores share the work, the preferred one first
  std::vector<KernelOperand> (*operands)(const KernelInput&) = nullptr;
  BuiltKernel (*build)(const KernelInput&, const std::vector<KernelOperand>&) = nullptr;
};

}  // namespace trellis::device
