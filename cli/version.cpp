#include "cli/verbs/verbs.h"

namespace trellis::cli {

std::string version_text() {
  return "trellis " TRELLIS_VERSION "\nLibTorch " TRELLIS_TORCH_VERSION "\ncompiler " __VERSION__;
}

}  // namespace trellis::cli
