#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "device/compiler/emit/phase.h"

/// A traced NKI kernel, as the Python package trellis_neuron.nki writes it: document.json and a
/// file for the values of each tensor that has some. The package's docstring has the schema
/// "trellis.nki_trace/1".
namespace trellis::device::nki {

/// Memory that the kernel names: in HBM, or a tile of one loop's body.
struct Tensor {
  isa::MemorySpace space = isa::MemorySpace::kHbm;
  std::string kind;  ///< input, output, scratch, const, tile
  std::string name, line;
  isa::DType dtype = isa::DType::kFp32;
  std::vector<std::int64_t> shape;
  int home = 0;            ///< the loop whose iterations have one each; 0: the kernel
  int partitions = 1;      ///< on chip
  std::int64_t bytes = 0;  ///< of a partition; in HBM of all
  std::string file;        ///< its values; "": none

  [[nodiscard]] std::string text() const;  ///< "name [128, 512] fp32 of k.py:7"
};

/// An access pattern over loops of the kernel.
struct Operand {
  int tensor = -1;
  int first_partition = 0, partitions = 1;
  std::int64_t partition_stride = 0, offset = 0;  ///< elements
  std::vector<std::pair<int, std::int64_t>> loops;
  Dims dims;

  [[nodiscard]] bool present() const { return tensor >= 0; }
  [[nodiscard]] std::int64_t free_elements() const;
};

inline constexpr int kDst = 0, kSrc0 = 1, kSrc1 = 2, kDst1 = 3;

/// A loop with its body, or an instruction. kMatmul has its stationary operand in src0 and the
/// moving one in src1.
struct Step {
  // a loop
  int loop = 0;  ///< 0: an instruction
  std::int64_t count = 1;
  bool affine = false;  ///< its iterations may run in any order
  std::vector<Step> body;
  // an instruction
  isa::Opcode opcode = isa::Opcode::kMemset;
  std::string engine;  ///< "": as the opcode's default
  isa::AluOp alu = isa::AluOp::kNone, alu2 = isa::AluOp::kNone;
  isa::Activation activation = isa::Activation::kIdentity;
  double imm0 = 0, imm1 = 0;
  bool accumulate = false, overwrite_first = false;
  std::array<Operand, 4> operands;

  std::string line;  ///< of the kernel's file, "k.py:12"
};

struct Expected {
  int tensor = 0;
  std::vector<double> values;
};

struct Document {
  std::string kernel;
  std::vector<std::string> unrolled;  ///< places of loops that were
  std::vector<Tensor> tensors;
  std::vector<Step> body;
  std::vector<int> outputs;
  std::vector<Expected> expected;
  std::filesystem::path folder;
};

/// Throws ConfigError for what the schema does not have.
[[nodiscard]] Document read_document(const std::filesystem::path& folder);
/// The bytes of a tensor's file. Throws ConfigError when their number is not the tensor's.
[[nodiscard]] std::vector<std::uint8_t> read_values(const Document& document, const Tensor& tensor);

}  // namespace trellis::device::nki
