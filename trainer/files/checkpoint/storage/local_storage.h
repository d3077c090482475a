#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

[[nodiscard]] std::shared_ptr<Storage> open_local_storage(const std::string& root);

}  // namespace trellis::checkpoint
