#include "trainer/files/checkpoint/formats/native/stored_tensor.h"

#include <variant>

#include "base/error.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::native {

const Value* value_below(const Value& value, const PathKey& key) {
  const auto* place = std::get_if<std::int64_t>(&key);
  if (place == nullptr || !value.is(Value::Kind::kList))
    return value.find(std::visit([](const auto& word) { return Value(word); }, key));
  const Value::List& items = value.items();
  const bool is_there = *place >= 0 && *place < static_cast<std::int64_t>(items.size());
  return is_there ? &items[static_cast<std::size_t>(*place)] : nullptr;
}

std::int64_t tensor_number(const TorchFileReader& reader, const StoredTensor& stored,
                           const std::string& address) {
  const Value* value = &reader.root();
  for (const PathKey& key : stored.path) {
    value = value_below(*value, key);
    if (value == nullptr)
      throw ConfigError(address + ": " + stored.id() +
                        " is not in its file; the checkpoint is damaged");
  }
  const std::int64_t number = value->as_tensor();
  const TensorMeta& meta = reader.tensors().at(static_cast<std::size_t>(number)).meta;
  if (meta.dtype != stored.dtype || meta.shape != stored.shape)
    throw ConfigError(address + ": " + stored.id() + " is not as " + kManifestFile +
                      " says: expected " + name(stored.dtype) + " " + text_of(stored.shape) +
                      ", got " + name(meta.dtype) + " " + text_of(meta.shape));
  return number;
}

}  // namespace trellis::checkpoint::native
