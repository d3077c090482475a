#include "trainer/checkpoint/formats/native/stored_tensor.h"

#include <variant>

#include "base/error.h"
#include "trainer/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::native {

std::int64_t tensor_number(const TorchFileReader& reader, const StoredTensor& stored,
                           const std::string& address) {
  const Value* value = &reader.root();
  for (const PathKey& key : stored.path)
    value = &value->at(std::visit([](const auto& word) { return Value(word); }, key));
  const std::int64_t number = value->as_tensor();
  const TensorMeta& meta = reader.tensors().at(static_cast<std::size_t>(number)).meta;
  if (meta.dtype != stored.dtype || meta.shape != stored.shape)
    throw ConfigError(address + ": " + stored.id() + " is not as " + kManifestFile +
                      " says: expected " + name(stored.dtype) + " " + text_of(stored.shape) +
                      ", got " + name(meta.dtype) + " " + text_of(meta.shape));
  return number;
}

}  // namespace trellis::checkpoint::native
