#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/files/checkpoint/containers/dtype.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint {

struct SafetensorsEntry {
  std::string name;
  TensorMeta meta = {};          ///< requires_grad and is_parameter are false
  std::int64_t file_offset = 0;  ///< of its first byte in the file
};

/// Reads a safetensors file. Opening reads the header only. All members are safe to call from
/// several threads at once.
class SafetensorsReader {
 public:
  /// Throws ConfigError that names the file and the tensor: a header longer than the file or than
  /// 100 MB, malformed JSON, a type that is not known, sizes that do not fit the shape, and bytes
  /// that two tensors share or none has.
  explicit SafetensorsReader(std::shared_ptr<const ReadableFile> file);

  /// The tensors, in the order of their data.
  [[nodiscard]] const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  [[nodiscard]] const SafetensorsEntry* find(const std::string& name) const;
  /// The entry __metadata__.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const std::string& name() const { return file_->name(); }
  /// Bytes [first_byte, first_byte + into.size()) of the tensor. REQUIRES: they lie in it.
  void read_bytes(const SafetensorsEntry& tensor, std::int64_t first_byte,
                  std::span<std::byte> into) const;

 private:
  void read_entries(const std::string& header, std::int64_t data_begin);
  void check_cover(std::int64_t data_begin) const;

  std::shared_ptr<const ReadableFile> file_;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a safetensors file: its contents are declared first, because the header comes first.
class SafetensorsWriter {
 public:
  /// Data follow in the order of data_order(). Throws Error for a name that occurs twice and for a
  /// type that the format does not have (complex32, complex128).
  SafetensorsWriter(std::unique_ptr<WritableFile> file,
                    std::vector<std::pair<std::string, TensorMeta>> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// Order in which the data are to be written, as indices of the constructor's list: large element
  /// types first, then by name, as the safetensors library does, so that data are aligned.
  [[nodiscard]] const std::vector<std::size_t>& data_order() const { return order_; }
  /// Next bytes of the data. Throws Error when there are more than was said.
  void write(std::span<const std::byte> bytes);
  /// The file is visible afterwards. Throws Error when bytes are missing.
  void finish();

 private:
  std::unique_ptr<WritableFile> file_;
  std::vector<std::size_t> order_;
  std::int64_t missing_ = 0;  ///< bytes
};

/// `model.safetensors.index.json`: which file of the folder holds which tensor.
struct SafetensorsIndex {
  std::map<std::string, std::string> weight_map;  ///< tensor → file in the folder of the index
  std::int64_t total_size = 0;                    ///< bytes of all tensors
};
/// Throws ConfigError for malformed JSON and for a file name that leaves the folder.
[[nodiscard]] SafetensorsIndex read_safetensors_index(Storage& storage, const std::string& path);
void write_safetensors_index(Storage& storage, const std::string& path,
                             const SafetensorsIndex& index);

}  // namespace trellis::checkpoint
