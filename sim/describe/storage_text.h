#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/config/storage_config.h"

namespace trellis::sim {

/// Describes a storage: what it gives to a rank, an instance and all of them, and every number with
/// its source.
[[nodiscard]] std::string storage_text(const StorageConfig& storage, const SystemConfig& system);
/// The same as a document's row.
[[nodiscard]] nlohmann::json storage_json(const StorageConfig& storage);

}  // namespace trellis::sim
