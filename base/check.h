#pragma once

#include <string>

namespace trellis {

/// Reports a broken internal invariant and ends the operation with an exception (exit code 1).
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& text);

}  // namespace trellis

/// For folders without LibTorch; TORCH_INTERNAL_ASSERT elsewhere.
#define TRELLIS_CHECK(condition, text) \
  ((condition) ? static_cast<void>(0)  \
               : ::trellis::check_failed(__FILE__, __LINE__, #condition, (text)))
