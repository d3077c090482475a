#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/content_hash.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"

namespace trellis::checkpoint::native {

/// A file of a checkpoint of which each byte is read once and hashed: tensors in their order, and
/// what lies between them. One thread at a time.
class FileStream {
 public:
  explicit FileStream(std::shared_ptr<const ReadableFile> file);

  /// Where a tensor's bytes begin. Throws ConfigError, with the checkpoint's `address`, when the
  /// file is not as the manifest says.
  [[nodiscard]] std::int64_t offset_of(const StoredTensor& tensor, const std::string& address);
  /// Reads the bytes from `offset` on. Bytes before the end of the last read are read again.
  void read(std::int64_t offset, std::span<std::byte> into);
  /// Reads the rest: what the file is.
  [[nodiscard]] StoredFile finish();

 private:
  class Remembering;
  void hash(std::int64_t end, std::byte* into);

  std::shared_ptr<Remembering> file_;
  std::map<std::int64_t, std::unique_ptr<TorchFileReader>> readers_;  ///< by StoredTensor's entry
  ContentHasher hasher_;
  std::int64_t done_ = 0;  ///< bytes that are hashed
};

}  // namespace trellis::checkpoint::native
