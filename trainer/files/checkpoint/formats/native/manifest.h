#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/content_hash.h"
#include "trainer/files/checkpoint/containers/dtype.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint::native {

/// Manifest::run of what a conversion wrote: no training's, so that none removes it.
inline constexpr const char* kConversionRun = "conversion";

/// A key on the way from the root of a .pt file to a tensor: of a dict.
using PathKey = std::variant<std::string, std::int64_t>;

/// A part of a stored tensor and the layout-independent one that it belongs to.
struct StoredPart {
  std::string key;
  Shape global_shape, global_offset;
  Box local;
  bool operator==(const StoredPart&) const = default;
};

/// A tensor in a file of the checkpoint.
struct StoredTensor {
  std::string file;  ///< relative to the tag
  std::vector<PathKey> path;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<StoredPart> parts;  ///< those of which it is the main replica
  /// With DCP: the bytes of `file` that are a torch file. An entry_length of 0: all bytes are.
  std::int64_t entry_offset = 0, entry_length = 0;
  [[nodiscard]] std::int64_t bytes() const { return elements_of(shape) * element_bytes(dtype); }
  [[nodiscard]] std::string id() const;  ///< "optim/….pt:base_state/3/exp_avg"; of DCP with offset
  bool operator==(const StoredTensor&) const = default;
};

struct StoredFile {
  std::int64_t bytes = 0;
  std::string xxh3_128;  ///< ContentHash over the bytes, in hexadecimal digits
  bool operator==(const StoredFile&) const = default;
};

/// Bytes of a file and where they go.
struct FileRange {
  std::int64_t offset = 0;
  std::span<std::byte> into;
};

/// XXH3-128 of a whole file; reads it once, in pieces, and fills `ranges` on the way. REQUIRES: the
/// ranges ascend, do not overlap and lie in the file.
[[nodiscard]] StoredFile hash_file(const ReadableFile& file,
                                   std::span<const FileRange> ranges = {});

/// Description of a checkpoint in one file, written after all others but `done`: enough to load it
/// in every layout, to check every byte, and to compare it with other checkpoints.
struct Manifest {
  std::int64_t step = 0, consumed_samples = 0;
  std::int64_t sequence = 0;  ///< 1, 2, … in the order in which the folder's checkpoints were saved
  std::optional<double> metric;  ///< the monitored number; none: it was not there
  std::string run;               ///< of the run that saved it (RunIdentity); "": no one said
  std::string tag;               ///< as which it was saved; "": no one said
  std::map<std::string, std::int64_t> layout;  ///< tp, pp, vpp, dp, zero1, kv_replicator
  std::map<std::string, StoredFile> files;
  std::vector<StoredTensor> tensors;  ///< by id

  [[nodiscard]] std::string to_json() const;
  /// Throws ConfigError with `where` for anything that no Manifest::to_json wrote: another version,
  /// a part outside its tensor, a path that leaves the folder, sizes that no memory holds.
  static Manifest from_json(const std::string& text, const std::string& where);
  bool operator==(const Manifest&) const = default;
};

/// Why a mark of a checkpoint (kBeginFile, kDoneFile) is none: it is missing, or a cut or a changed
/// disk left something else in it; "": it is one.
[[nodiscard]] std::string problem_of_mark(Storage& storage, const std::string& tag,
                                          const char* mark);

/// Reads the manifest of the complete checkpoint `tag`. Throws ConfigError: no checkpoint there, an
/// incomplete one, a damaged manifest.
[[nodiscard]] Manifest read_manifest(Storage& storage, const std::string& tag);

}  // namespace trellis::checkpoint::native
