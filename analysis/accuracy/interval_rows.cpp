#include "analysis/accuracy/interval_rows.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace trellis::analysis {
namespace {

using sim::isa::Instruction;
using sim::isa::Program;

constexpr int kFew = 16, kMany = 272;
constexpr int kRing = 4;  ///< tiles that results go to in turn

/// Instructions as text, one a line, as the only ones of their queue.
Program program_of(const std::string& engine, const std::string& instructions,
                   const sim::CoreConfig& core) {
  return sim::isa::parse_program(
      fmt::format("program \"interval\"\n"
                  "buffer \"sbuf\" sbuf partitions=0+128 bytes_per_partition={}\n"
                  "buffer \"psum\" psum partitions=0+128 bytes_per_partition={}\n"
                  "buffer \"hbm\" hbm bytes=67108864 slot=0\n"
                  "kernel \"interval\" node=0 flops=0\n"
                  "segment\nqueue {}\n  {}",
                  core.limits.sbuf_bytes_per_partition, core.limits.psum_bytes_per_partition,
                  engine, instructions));
}

std::vector<Instruction>& only_queue(Program& program) {
  for (auto& queue : program.segments.at(0).queues) {
    if (!queue.empty()) return queue;
  }
  throw ConfigError("expected an instruction");
}

/// `before` once, then `count` times the last instruction, each into the next tile of the ring.
Program repeated(const Program& one, int count) {
  Program program = one;
  std::vector<Instruction>& queue = only_queue(program);
  const Instruction instruction = queue.back();
  queue.pop_back();
  for (int n = 0; n < count; ++n) {
    queue.push_back(instruction);
    queue.back().dst.offset += n % kRing * instruction.dst.elements_per_partition();
  }
  return program;
}

}  // namespace

double interval_row_us(const PublishedRow& row, const sim::SystemConfig& system,
                       sim::Simulator& simulator) {
  const auto engine = row.spec.required<std::string>("engine");
  const auto before = row.spec.get<std::string>("before", "");
  const auto instruction = row.spec.required<std::string>("instruction");
  try {
    const Program one = program_of(
        engine, before.empty() ? instruction : before + "\n  " + instruction, system.chip.core);
    const auto time = [&](int count) {
      const Program program = repeated(one, count);
      if (const auto broken = sim::isa::validate(program, system.chip.core.limits); !broken.empty())
        throw ConfigError(broken.front().text);
      return simulator.time_program(program).segments.at(0).duration;
    };
    return static_cast<double>((time(kMany) - time(kFew)).value) * 1e-6 / (kMany - kFew);
  } catch (const ConfigError& error) {
    throw ConfigError("row " + row.id + ": " + error.what());
  }
}

}  // namespace trellis::analysis
