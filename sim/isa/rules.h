#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/isa/program.h"

namespace trellis::sim::isa {

/// Partitions that share a scale of MX data; four packed values each make the group of 32.
inline constexpr int kMxScaleRows = 8;

/// The surroundings of one instruction, as its rules need them.
struct RuleContext {
  const Program& program;
  const Limits& limits;
  Engine engine;
  std::span<const std::int64_t> loop_counts;  ///< of the enclosing loops, outermost first
  const Instruction* stationary =
      nullptr;  ///< the LoadStationary before this instruction in its queue
};

/// Rules of one buffer by itself: partitions, capacity, alignment.
void check_buffer(const Buffer& buffer, const Limits& limits, std::vector<std::string>& out);

/// Rules of the operands of one instruction: present, in range, in a legal space, on legal
/// partitions. Returns false when an operand names no buffer, so that shapes cannot be judged.
bool check_operands(const Instruction& instruction, const RuleContext& context,
                    std::vector<std::string>& out);

/// Rules of what the opcode does: engine, sizes, shapes that must agree. REQUIRES: check_operands
/// returned true.
void check_operation(const Instruction& instruction, const RuleContext& context,
                     std::vector<std::string>& out);

/// Rules of the array (matmul_rules.cpp). REQUIRES: the operands that the opcode needs are present.
void check_tensor_places(const Instruction& instruction, const RuleContext& context,
                         std::vector<std::string>& out);
void check_load_stationary(const Instruction& instruction, const RuleContext& context,
                           std::vector<std::string>& out);
void check_matmul(const Instruction& instruction, const RuleContext& context,
                  std::vector<std::string>& out);

[[nodiscard]] bool is_dma(Opcode opcode);
[[nodiscard]] bool is_control(Opcode opcode);

/// Hardware.md §2.6: more than 64 partitions start at 0; 33 to 64 at 0 or 64; up to 32 at 0, 32, 64
/// or 96.
[[nodiscard]] bool legal_partition_start(int start, int count);

}  // namespace trellis::sim::isa
