#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/conversion/tensor_fill.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// A tensor of a file that is to be written.
struct PlannedTensor {
  TensorMeta meta;
  std::vector<ShardedPart> parts;  ///< global tensors that fill it; zeros elsewhere
  std::vector<std::byte> content;  ///< instead of parts: all of its bytes
};

/// A .pt file of a layout, before its tensors have values.
struct PlannedFile {
  std::string path;  ///< relative to the checkpoint
  Value root;        ///< its tensors are indices of `tensors`
  std::vector<PlannedTensor> tensors;
  std::vector<native::StoredTensor> stored;  ///< for the manifest
  [[nodiscard]] std::int64_t bytes() const;
};

/// Writes a checkpoint from the global tensors of another one, file by file. Until finish() its
/// folder has the marks of an interrupted save: nothing takes it as a checkpoint, and another
/// NativeWriter begins again there.
class NativeWriter {
 public:
  /// Throws ConfigError when something is at the place that no interrupted writer left.
  NativeWriter(TensorSource& source, Place place);

  /// Problems of filling the file's tensors, each once; for all files before the first write.
  [[nodiscard]] std::vector<std::string> problems(const PlannedFile& file) const;
  /// Makes the folder with the marks; what an interrupted writer left there is removed. Throws
  /// OutputError.
  void begin();
  /// Called by several threads at once. Throws ConfigError for damage of the source, OutputError.
  void write(const PlannedFile& file);
  /// All bytes of a tensor, for another file. Throws ConfigError for damage of the source.
  void fill(const PlannedTensor& tensor, const WriteBytes& write) const;
  /// Adds files and tensors that another writer wrote. Called by one thread.
  void add(std::map<std::string, native::StoredFile> files,
           std::vector<native::StoredTensor> tensors);
  /// The checkpoint is complete afterwards. `head`: without files and tensors; none: no manifest.
  /// Throws ConfigError for damage of the source: the checkpoint stays incomplete.
  void finish(std::optional<native::Manifest> head, const Value& user_content);

 private:
  TensorSource& source_;
  Place place_;
  TensorIndex index_;
  std::mutex mutex_;
  native::Manifest manifest_;
};

}  // namespace trellis::checkpoint
