#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trellis::sim {

/// "fp32@0x6010[1,1,1,1][512,1,1,1]" or "0x2000800[1,0,0][512,1,1]": strides and counts, innermost
/// first, in elements.
struct OperandText {
  std::string dtype;  ///< "": not written
  std::uint64_t address = 0;
  std::vector<std::int64_t> strides, counts;
};

/// A wait or an update in the text: "S[5] (Tensor)>=3", "S[4] (Scalar)++@complete".
struct SemaphoreText {
  std::uint32_t id = 0;
  std::string action;  ///< ">=", "++", "+=", or whatever else the file says
  std::int64_t value = 1;
};

/// A profile writes this after an opcode: `key=value` pairs, semaphores, and words.
struct InstructionText {
  std::vector<std::pair<std::string, std::string>> fields;
  std::vector<SemaphoreText> semaphores;
  std::vector<std::string> words;  ///< "EXP", "128*128"
  [[nodiscard]] std::optional<std::string> find(std::string_view key) const;
};

[[nodiscard]] InstructionText read_instruction_text(std::string_view text);
/// Nullopt for a text of another form.
[[nodiscard]] std::optional<OperandText> read_operand_text(std::string_view text);
/// "[2048,1][128,1]": strides and counts.
[[nodiscard]] std::optional<OperandText> read_pattern_text(std::string_view text);
/// Decimal or 0x…, signed.
[[nodiscard]] std::optional<std::int64_t> read_integer(std::string_view text);

}  // namespace trellis::sim
