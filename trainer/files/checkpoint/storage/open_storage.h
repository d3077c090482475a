#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

/// A local path, or s3://bucket/prefix?region=…&endpoint_override=host:port&scheme=http (Arrow's
/// options; credentials come from where the AWS SDK takes them, never from the address).
/// Requests to S3 are tried up to 10 times with exponentially growing pauses. The S3 library is
/// loaded at the first s3:// address. A local root need not exist. Throws ConfigError for an
/// address that cannot be understood.
[[nodiscard]] std::shared_ptr<Storage> open_storage(const std::string& address);

}  // namespace trellis::checkpoint
