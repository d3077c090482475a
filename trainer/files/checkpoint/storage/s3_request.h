#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/storage/storage.h"

/// Exported by libtrellis_s3.so, which carries Arrow's S3 file system: opens s3://… into `storage`.
/// Throws ConfigError.
using trellis_open_s3_storage_fn = void (*)(const std::string& address,
                                            std::shared_ptr<trellis::checkpoint::Storage>& storage);

namespace trellis::checkpoint {}  // namespace trellis::checkpoint
