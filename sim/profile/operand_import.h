#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/isa/program.h"
#include "sim/profile/operand_text.h"

namespace trellis::sim {

/// Makes access patterns of a profile's operands. On the chip there is one buffer of SBUF and one
/// of PSUM, and partitions lie 256 KiB from each other in the address space; in HBM every range
/// that is touched becomes a buffer.
///
///   0x0000000  SBUF, partition 0     0x0040000  SBUF, partition 1     …
///   0x2000000  PSUM, partition 0     0x2040000  PSUM, partition 1     …
class OperandImport {
 public:
  using Fail = std::function<void(const std::string& key, const std::string& text)>;

  OperandImport(isa::Program& program, const isa::Limits& limits);

  /// An operand of an engine's instruction. `dtype`: used where the text has none.
  [[nodiscard]] isa::AccessPattern on_chip(const OperandText& text, const std::string& key,
                                           std::int64_t partitions, isa::DType dtype,
                                           const Fail& fail) const;
  /// Both sides of a transfer.
  void transfer(const InstructionText& text, isa::Instruction& out, const Fail& fail);
  /// Gives the ranges of HBM their buffers. Call it once, when all instructions are made.
  void bind_hbm();

  [[nodiscard]] static std::optional<isa::DType> dtype_of(const std::string& word);

 private:
  struct Side {
    std::uint64_t address = 0;
    bool chip = false;
    std::int64_t element_bytes = 0;
    OperandText pattern;
    std::optional<isa::DType> dtype;
  };
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };

  [[nodiscard]] std::optional<Side> read_side(const InstructionText& text, const std::string& name,
                                              const Fail& fail) const;
  static void partitions_outermost(Side& source, Side& target);
  [[nodiscard]] isa::AccessPattern pattern_of(const Side& side, const std::string& name,
                                              isa::DType dtype, const Fail& fail);

  isa::Program& program_;
  const isa::Limits& limits_;
  std::vector<Range> ranges_;  ///< of HBM operands, whose buffer is their place here until bind_hbm
};

}  // namespace trellis::sim
