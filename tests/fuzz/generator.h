#pragma once

#include "tests/fuzz/chooser.h"

namespace trellis::fuzz {

/// Draws statements, each with the tensors in view that the ones before it left on `machine`.
class Generator {
 public:
  Generator(std::uint64_t seed, const Machine& machine)
      : random_(seed), choose_(random_, machine), machine_(machine) {}
  Statement next();

 private:
  Statement make_tensor();
  Statement call_operator();
  Statement one_operand(Statement::Kind kind);

  Random random_;
  Chooser choose_;
  const Machine& machine_;
  Id statements_ = 0;
};

/// Names in the table that this LibTorch does not have: there must be none.
[[nodiscard]] std::vector<std::string> unknown_operators();

}  // namespace trellis::fuzz
