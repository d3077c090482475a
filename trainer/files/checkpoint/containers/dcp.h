#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/files/checkpoint/containers/dcp_metadata.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/storage/storage.h"

/// The folders of torch.distributed.checkpoint (DCP): `.metadata`, a pickle that says where
/// everything lies, and data files `__{rank}_{n}.distcp`, which are concatenations of torch.save
/// files, one per chunk of a tensor or per object.
namespace trellis::checkpoint {

/// The key that an object has in a DCP folder of Megatron-core is `key/shard_…`; it is an ordinary
/// name here.
class DcpReader {
 public:
  /// `folder` is relative to the storage. Throws ConfigError that names the file: no `.metadata`, a
  /// pickle that is not allowed, a chunk that leaves its tensor, a data file name that leaves the
  /// folder, transformed (compressed) entries.
  DcpReader(std::shared_ptr<Storage> storage, std::string folder);
  ~DcpReader();
  DcpReader(const DcpReader&) = delete;
  DcpReader& operator=(const DcpReader&) = delete;

  [[nodiscard]] const DcpMetadata& metadata() const { return metadata_; }
  /// Bytes [first_byte, first_byte + into.size()) of the chunk in row-major form; safe to call from
  /// several threads. Throws ConfigError: a missing or cut data file, or a content that is not what
  /// the metadata say. REQUIRES: the range lies in the chunk, ends at multiples of the element
  /// size.
  void read_chunk(const std::string& tensor, std::size_t chunk, std::int64_t first_byte,
                  std::span<std::byte> into) const;
  /// A torch file of the value; `classes` as TorchFileReader has it. Throws as read_chunk.
  [[nodiscard]] std::unique_ptr<TorchFileReader> open_object(
      const std::string& name, std::set<std::string> classes = {}) const;

 private:
  struct Files;
  [[nodiscard]] std::shared_ptr<const ReadableFile> part(const DcpPlace& place,
                                                         const std::string& what) const;

  std::shared_ptr<Storage> storage_;
  std::string folder_;
  DcpMetadata metadata_;
  std::unique_ptr<Files> files_;
};

/// "__{rank}_{n}.distcp".
[[nodiscard]] std::string dcp_file_name(std::int64_t rank, std::int64_t n);

/// Writes one data file. Entries come one after the other.
class DcpFileWriter {
 public:
  /// `name` is relative to `folder`, such as dcp_file_name(0, 1).
  DcpFileWriter(Storage& storage, const std::string& folder, std::string name);
  /// Into `file`, which metadata call `name`.
  DcpFileWriter(std::unique_ptr<WritableFile> file, std::string name);
  ~DcpFileWriter();
  DcpFileWriter(const DcpFileWriter&) = delete;
  DcpFileWriter& operator=(const DcpFileWriter&) = delete;

  /// One chunk of a tensor; its bytes follow by write(). `meta`: type and shape of the chunk.
  void begin_chunk(const TensorMeta& meta);
  void write(std::span<const std::byte> bytes);
  /// Where the chunk lies. REQUIRES: all of its bytes are written.
  [[nodiscard]] DcpPlace end_chunk();
  /// A value without tensors.
  [[nodiscard]] DcpPlace add_object(const Value& value);
  /// A file of torch.save, such as one with tensors.
  [[nodiscard]] DcpPlace add_object_file(std::string_view torch_file);
  /// The file is visible afterwards.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes `.metadata`. Throws Error when chunks do not cover each tensor once.
void write_dcp_metadata(Storage& storage, const std::string& folder, const DcpMetadata& metadata);

}  // namespace trellis::checkpoint
