#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/containers/value.h"

namespace trellis::checkpoint {

/// Bytes of one entry in a data file.
struct DcpPlace {
  std::string file;  ///< relative to the folder
  std::int64_t offset = 0;
  std::int64_t length = 0;
  friend bool operator==(const DcpPlace&, const DcpPlace&) = default;
};

/// A box of a tensor that is stored in one piece.
struct DcpChunk {
  std::vector<std::int64_t> offsets;  ///< per dimension, elements
  std::vector<std::int64_t> sizes;
  DcpPlace place = {};
  friend bool operator==(const DcpChunk&, const DcpChunk&) = default;
};

struct DcpTensor {
  TensorMeta meta;  ///< of the whole tensor
  std::vector<DcpChunk> chunks;
  friend bool operator==(const DcpTensor&, const DcpTensor&) = default;
};

/// Content of `.metadata`.
struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;
  std::map<std::string, DcpPlace> objects;  ///< torch.save'd values that are no tensors
  /// How a flattened state dict was nested: flat key → tuple of dict keys and list indices, as the
  /// default planner writes it. None: not written.
  Value planner_data;
  /// Extra data of Megatron-core ("mcore_data"): None, or a dict of tensor key → dict.
  Value mcore_data;
};

inline constexpr const char* kDcpMetadataFile = ".metadata";

/// The content of `.metadata`, and back. `where`: the file. Throws ConfigError.
[[nodiscard]] DcpMetadata parse_dcp_metadata(std::span<const std::byte> pickle,
                                             const std::string& where);
[[nodiscard]] std::string pickle_dcp_metadata(const DcpMetadata& metadata);

/// Throws ConfigError unless the chunks lie in their tensor and cover each element once.
void check_dcp_cover(const DcpMetadata& metadata, const std::string& where);

}  // namespace trellis::checkpoint
