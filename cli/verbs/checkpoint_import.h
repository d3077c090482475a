#pragma once

#include "trainer/requests/reshard_request.h"

namespace trellis::cli {

/// Writes the checkpoint `request.source`, of any format, in the layout of the configuration. With
/// `verify` then reads it back, compares every weight with the source's and prints those that
/// differ most. The exit code: 5 when some differ. Throws ConfigError.
[[nodiscard]] int import_checkpoint(const trainer::ReshardRequest& request, bool verify);

}  // namespace trellis::cli
