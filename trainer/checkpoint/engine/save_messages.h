#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/plan/transfer_plan.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

/// Messages between the processes of a run about a save. Reading a message's text gives what was
/// written.
namespace trellis::checkpoint::native {

/// Files that the ranks of a process could write, and the parts of tensors that they hold.
struct SaveOffer {
  std::map<std::string, Transfer> files;  ///< by path, which is the id
  std::vector<ShardedTensor> shards;
  bool operator==(const SaveOffer&) const = default;

  [[nodiscard]] std::string to_text() const;
  static SaveOffer from_text(const std::string& text);
};

/// A box of a tensor in a folder of DCP, and where it lies.
struct WrittenChunk {
  std::string key;
  TensorMeta meta;  ///< of the whole tensor
  DcpChunk box;
  bool operator==(const WrittenChunk&) const = default;
};

/// Result of the writes of one process's ranks.
struct Written {
  std::map<std::string, StoredFile> files;
  std::vector<StoredTensor> tensors;
  std::string error;  ///< of a process that could not write; "": none
  std::vector<WrittenChunk> chunks = {};
  std::string chunk_error = {};  ///< why not all chunks are written, which the checkpoint survives
  std::vector<WrittenChunk> states = {};         ///< of the folder of use_zero1_dcp
  std::map<std::string, DcpPlace> objects = {};  ///< of the same, by key
  bool operator==(const Written&) const = default;

  void add(Written other);
  [[nodiscard]] std::string to_text() const;
  static Written from_text(const std::string& text);
};

}  // namespace trellis::checkpoint::native
