#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files/input_file.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

class LocalReadableFile : public ReadableFile {
 public:
  explicit LocalReadableFile(const std::filesystem::path& path);
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t size() const override { return file_.size(); }
  void read(std::int64_t offset, std::span<std::byte> into) const override;

 private:
  std::string name_;
  InputFile file_;
};

class LocalWritableFile : public WritableFile {
 public:
  /// `path`: final place; `relative`: the same for fault points. Its folder exists.
  LocalWritableFile(std::filesystem::path path, std::string relative, Durability durability,
                    std::shared_ptr<FaultPoints> faults);
  ~LocalWritableFile() override;
  void write(std::span<const std::byte> bytes) override;
  void close() override;

 private:
  void flush();
  void put(std::span<const std::byte> bytes);

  std::filesystem::path path_, unfinished_;
  std::string relative_;
  Durability durability_;
  std::shared_ptr<FaultPoints> faults_;
  int descriptor_ = -1;
  bool renamed_ = false;
  std::int64_t written_ = 0, started_ = 0;  ///< bytes; given to the system, of which on their way
                                            ///< to the disk
  std::vector<std::byte> buffer_;
};

/// Writes a folder's entries to the disk. Throws OutputError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trellis::checkpoint
