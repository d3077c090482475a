#include "trainer/files/checkpoint/conversion/full_writer.h"

#include "base/error.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/full/full_source.h"

namespace trellis::checkpoint {

void write_full(const TensorSource& source, const Place& place, const ConvertOptions& options,
                const Progress& progress) {
  const std::string path =
      place.path.ends_with(".pt") ? place.path : join_path(place.path, full::kFileName);
  if (place.storage->exists(path))
    throw ConfigError(join_path(place.storage->address(), path) +
                      ": exists; choose another name, or remove it");
  const ConvertedTensors tensors(source, options);
  ByteProgress done(tensors.entries(), progress);
  TorchFileWriter writer(place.storage->create(path));
  Value root = Value::ordered_dict();
  for (const TensorEntry& entry : tensors.entries()) {
    root.set(Value(entry.key),
             Value::tensor(writer.add_tensor({.dtype = entry.dtype, .shape = entry.shape})));
    tensors.read(entry, [&](std::span<const std::byte> bytes) {
      writer.write(bytes);
      done.add(bytes.size());
    });
  }
  writer.finish(root, full::note_of(source.point()));
}

}  // namespace trellis::checkpoint
