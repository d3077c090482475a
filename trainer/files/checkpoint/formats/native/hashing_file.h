#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint::native {

/// Counts and hashes what goes to another file.
class HashingFile final : public WritableFile {
 public:
  struct Result {
    ContentHasher hasher;
    std::int64_t bytes = 0;
    [[nodiscard]] StoredFile stored() { return {bytes, hasher.finish().to_string()}; }
  };
  HashingFile(std::unique_ptr<WritableFile> file, std::shared_ptr<Result> result)
      : file_(std::move(file)), result_(std::move(result)) {}
  void write(std::span<const std::byte> bytes) override {
    result_->hasher.bytes(bytes.data(), bytes.size());
    result_->bytes += static_cast<std::int64_t>(bytes.size());
    file_->write(bytes);
  }
  void close() override { file_->close(); }

 private:
  std::unique_ptr<WritableFile> file_;
  std::shared_ptr<Result> result_;
};

}  // namespace trellis::checkpoint::native
