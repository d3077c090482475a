#pragma once

#include <cstdint>
#include <string>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"

namespace trellis::checkpoint::native {

/// The value at `key` of a dict, or at the index `key` of a list; null: there is none.
[[nodiscard]] const Value* value_below(const Value& value, const PathKey& key);

/// Number of the tensor in its file. Throws ConfigError, with the checkpoint's `address`, when the
/// file holds another one than the manifest says.
[[nodiscard]] std::int64_t tensor_number(const TorchFileReader& reader, const StoredTensor& stored,
                                         const std::string& address);

}  // namespace trellis::checkpoint::native
