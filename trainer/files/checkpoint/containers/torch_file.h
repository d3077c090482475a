#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/record_checks.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/storage/storage.h"

/// The files of torch.save: a zip archive with a pickle and one record per storage.
namespace trellis::checkpoint {

/// Name of the record of a note, among those of the archive.
inline constexpr const char* kNoteRecord = ".trellis";

struct TorchStorage {
  std::string key;  ///< name of its record under data/
  std::int64_t bytes = 0;
  std::int64_t file_offset = 0;  ///< of its first byte in the file
  std::string location = {};     ///< device that it was saved from, such as "cpu"
  std::uint32_t crc32 = 0;       ///< 0: not known
};

struct TorchTensor {
  TensorMeta meta;
  std::int64_t storage = 0;                ///< index
  std::int64_t storage_offset = 0;         ///< elements
  std::vector<std::int64_t> strides = {};  ///< elements
  [[nodiscard]] bool is_contiguous() const;
};

/// Reads a file of torch.save (zip format, PyTorch 1.6 and later). Opening reads the directory and
/// the pickle only. A storage of which any byte is asked for is first compared as a whole with the
/// archive's checksum. All members are safe to call from several threads at once.
class TorchFileReader {
 public:
  /// `classes`: names in addition to the plain ones that the pickle may hold (PickleOptions).
  /// `checks`: shared by readers of the same files; null: of this one alone. Throws ConfigError
  /// that names the file: not such a file, an older format, a pickle that is not allowed, a tensor
  /// outside its storage, a sparse, quantised or big-endian tensor.
  explicit TorchFileReader(std::shared_ptr<const ReadableFile> file,
                           std::set<std::string> classes = {},
                           std::shared_ptr<RecordChecks> checks = nullptr);

  [[nodiscard]] const Value& root() const { return root_; }
  [[nodiscard]] const std::vector<TorchTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<TorchStorage>& storages() const { return storages_; }
  [[nodiscard]] const std::string& name() const { return file_->name(); }
  /// The note that TorchFileWriter::finish() was given; "": none, or another program wrote the
  /// file.
  [[nodiscard]] const std::string& note() const { return note_; }

  /// The tensor in contiguous (row-major) form, whatever its strides. REQUIRES: into.size() ==
  /// tensors()[tensor].meta.bytes(). Throws ConfigError when the file fails, and when the storage
  /// differs from the archive's checksum.
  void read_tensor(std::int64_t tensor, std::span<std::byte> into) const;
  /// Bytes [first_byte, first_byte + into.size()) of that form. REQUIRES: the range lies in it and
  /// its ends are multiples of the element size.
  void read_bytes(std::int64_t tensor, std::int64_t first_byte, std::span<std::byte> into) const;
  /// Rows (indices of dimension 0) from first_row on, as many as fit. REQUIRES: at least one
  /// dimension, and into.size() is a multiple of a row.
  void read_rows(std::int64_t tensor, std::int64_t first_row, std::span<std::byte> into) const;

 private:
  friend class TorchFileParser;
  /// Bytes of a storage from `first` on; all of it is read and checked when it was not before.
  void read_storage(std::int64_t number, std::int64_t first, std::span<std::byte> into) const;
  void read_checked(const TorchStorage& storage, std::int64_t first,
                    std::span<std::byte> into) const;
  void gather(const TorchTensor& tensor, std::int64_t first, std::span<std::byte> into) const;

  std::shared_ptr<const ReadableFile> file_;
  std::shared_ptr<RecordChecks> checks_;
  Value root_;
  std::string note_;
  std::vector<TorchTensor> tensors_;
  std::vector<TorchStorage> storages_;
  /// By storage: true if checks_ need not be asked again.
  std::unique_ptr<std::atomic<bool>[]> is_checked_;
};

/// Writes a file that torch.load(weights_only=True) reads. Tensor data go to the file as they come:
/// memory does not grow with them.
///
///     TorchFileWriter writer(storage.create("model.pt"));
///     const std::int64_t weight = writer.add_tensor({.dtype = …, .shape = {4, 8}});
///     writer.write(first_half), writer.write(second_half);
///     writer.finish(Value::dict({{"weight", Value::tensor(weight)}}));
class TorchFileWriter {
 public:
  explicit TorchFileWriter(std::unique_ptr<WritableFile> file);
  ~TorchFileWriter();
  TorchFileWriter(const TorchFileWriter&) = delete;
  TorchFileWriter& operator=(const TorchFileWriter&) = delete;

  /// A contiguous tensor with its own storage; its bytes follow by write(). REQUIRES: the
  /// tensor before has all of its bytes.
  std::int64_t add_tensor(const TensorMeta& meta);
  std::int64_t add_tensor(const TensorMeta& meta, std::span<const std::byte> data);
  /// Another tensor over the storage of `base`, which stays one storage for the reader. Throws
  /// Error when the view leaves the storage. `storage_offset` and `strides` in elements of `meta`.
  std::int64_t add_view(std::int64_t base, const TensorMeta& meta, std::int64_t storage_offset,
                        std::vector<std::int64_t> strides);
  /// Next bytes, in row-major order, of the tensor that was added last. Throws OutputError.
  void write(std::span<const std::byte> bytes);
  /// Writes the pickle and the directory and closes the file: it is visible afterwards. Tensors of
  /// `root` are those that were added. `note`: a small text next to the pickle, which torch.load
  /// passes over. REQUIRES: every tensor has all of its bytes.
  void finish(const Value& root, const std::string& note = "");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::checkpoint
