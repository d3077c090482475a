#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/isa/types.h"

/// Instruction traces that neuron-profile exports as JSON: what a core executed, and when.
namespace trellis::sim {

/// Times in nanoseconds, as the file has them.
struct ProfileInstruction {
  std::size_t place = 0;  ///< in the file's list "instruction": messages name it
  isa::Engine engine = isa::Engine::kTensor;
  bool of_program = false;  ///< false: the runtime's own, before and after the program
  std::int64_t pc = 0;
  std::int64_t start = 0, duration = 0;
  std::string opcode, operands, function;
  [[nodiscard]] std::int64_t end() const { return start + duration; }
};

/// A stretch of bytes on one DMA engine.
struct ProfilePacket {
  int engine = 0, queue = 0;
  std::string kind;  ///< "hardware_dynamic", "software_dynamic", "static", "instruction", …
  std::int64_t bytes = 0, start = 0, duration = 0;
  [[nodiscard]] std::int64_t end() const { return start + duration; }
};

/// A stretch of time in which the array's clock did `high ? all : a part` of its rate.
struct ProfileClock {
  std::int64_t start = 0, duration = 0, share = 0, of = 1;
};

/// One core of a profile.
struct Profile {
  std::string name;                              ///< of the file
  std::string instance_type;                     ///< "trn2.3xlarge"
  std::string core;                              ///< "sg00"
  std::string versions;                          ///< of the profiler and the compiler
  std::vector<ProfileInstruction> instructions;  ///< by engine, in program order
  std::vector<ProfilePacket> packets;            ///< by start
  std::vector<ProfileClock> clock;               ///< by start
  std::map<int, std::string> queues;             ///< of DMA: number → name
  std::int64_t begin = 0, end = 0;               ///< of all instructions of the core
  std::vector<std::string> notes;                ///< what the file holds and this does not
};

/// Reads a profile, packed by xz or not. Throws ConfigError with all problems, each as
/// "FILE: list[place].key: …".
[[nodiscard]] Profile read_profile(const std::filesystem::path& file);
/// The same for a text. `name`: for messages.
[[nodiscard]] Profile parse_profile(std::string_view text, const std::string& name);

/// True: the file is a profile (JSON or xz) rather than a Program's text.
[[nodiscard]] bool looks_like_profile(std::string_view bytes);

}  // namespace trellis::sim
