#pragma once

#include <string>

#include "trainer/files/checkpoint/containers/dcp.h"

namespace trellis::checkpoint {

inline constexpr const char* kDcpMetadataFile = ".metadata";

/// The content of `.metadata`, and back. `where`: the file. Throws ConfigError.
[[nodiscard]] DcpMetadata parse_dcp_metadata(std::span<const std::byte> pickle,
                                             const std::string& where);
[[nodiscard]] std::string pickle_dcp_metadata(const DcpMetadata& metadata);

/// Throws ConfigError unless the chunks lie in their tensor and cover each element once.
void check_dcp_cover(const DcpMetadata& metadata, const std::string& where);

}  // namespace trellis::checkpoint
