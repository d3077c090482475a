#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint {

/// Opens a checkpoint of whatever format lies at `address` (a local folder or file, or s3://…).
/// Throws ConfigError that lists the formats that were tried, and what is there, when it is none.
[[nodiscard]] std::unique_ptr<TensorSource> open_checkpoint(const std::string& address);

}  // namespace trellis::checkpoint
