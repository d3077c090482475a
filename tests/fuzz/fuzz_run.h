#pragma once

#include <c10/util/Exception.h>

#include "tests/fuzz/fuzz_clock.h"

namespace trellis::fuzz {

inline constexpr int kStatements = 40;

/// LibTorch's warnings (resized outputs, deprecated forms) are no news here.
class Quiet {
 public:
  Quiet() : guard_(&silent_) {}

 private:
  class Silent final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace trellis::fuzz
