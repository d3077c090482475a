#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/runtime/collective_program.h"

namespace trellis::runtime::testing {

/// How one rank plays a program: on which device, through which backends (one per group of the
/// program, null where the rank is no member), with which tensors.
struct Stage {
  int rank = 0;
  c10::Device device{c10::kCPU};
  std::vector<c10::intrusive_ptr<c10d::Backend>> groups;
  bool strided = false;  ///< tensors with gaps, transposed, or in the middle of a buffer
  bool (*can_play)(const Instruction&) = nullptr;  ///< null: everything
};

/// Plays `program`: several communications are under way at once and are waited for at points that
/// the rank's own dice choose. Returns the outputs of each instruction as contiguous CPU tensors;
/// nothing where the rank took no part. Throws when a communication wrote between the elements of a
/// strided tensor.
[[nodiscard]] std::vector<Tensors> play(const Program& program, const Stage& stage);

/// The tensors that are combined into each output of `member`, in member order: one contribution is
/// a copy.
[[nodiscard]] std::vector<Tensors> contributions(const Instruction& instruction, int member,
                                                 int members);

}  // namespace trellis::runtime::testing
