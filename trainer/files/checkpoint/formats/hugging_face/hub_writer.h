#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/hugging_face/weight_map.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

/// Any checkpoint as a folder that transformers' from_pretrained reads.
namespace trellis::checkpoint::hugging_face {

/// As save_pretrained of transformers 4; transformers 5 takes 50 GB.
inline constexpr std::int64_t kDefaultShardBytes = 5'000'000'000;

struct ExportOptions {
  std::string config_text;     ///< of config.json
  std::string config_place;    ///< where that is from, for error texts
  std::optional<DType> dtype;  ///< none: each tensor keeps its own
  std::int64_t max_shard_bytes = kDefaultShardBytes;
  /// Tensor → file of weights, as an index of another folder has them; where it does not name every
  /// tensor, `max_shard_bytes` counts.
  std::map<std::string, std::string> files = {};
};

/// A file of weights.
struct ExportShard {
  std::string file;
  std::vector<std::size_t> tensors;  ///< of the map's hub tensors, in its order
  std::int64_t bytes = 0;
  bool operator==(const ExportShard&) const = default;
};

/// Files and tensors that an export writes. Data: it prints and compares.
struct ExportPlan {
  WeightMap map;
  std::vector<DType> dtypes;      ///< of the hub's tensors
  std::vector<TensorEntry> from;  ///< of the source, by native tensor of the map
  std::vector<ExportShard> shards;
  std::int64_t bytes = 0, parameters = 0;
  /// A line per tensor: file, name, type, shape.
  [[nodiscard]] std::string to_string() const;
  bool operator==(const ExportPlan&) const = default;
};

/// Throws ConfigError with every problem: tensors that the source does not have, or has in another
/// shape, or has and config.json's architecture does not. Rows of the vocabulary's padding are cut.
/// Weights come from their masters where those have more bits than the weights and the type asked
/// for has too.
[[nodiscard]] ExportPlan plan_export(const TensorSource& source, const ExportOptions& options);

/// Files in the order of the hub's tensors: a new one when the next tensor would make it larger
/// than `max_bytes`; a tensor that is larger by itself has its own. huggingface_hub's rule.
[[nodiscard]] std::vector<ExportShard> split_into_shards(const std::vector<std::int64_t>& bytes,
                                                         std::int64_t max_bytes);

/// Tensor → file of a folder's model.safetensors.index.json; empty: it has none. Throws ConfigError
/// for a damaged one.
[[nodiscard]] std::map<std::string, std::string> files_of_index(const Place& folder);

/// Small files that go with the weights, by name: config.json, tokenizer.json, …
using SideFiles = std::map<std::string, std::string>;

/// Writes weights, then the side files, then the index. A file "export-unfinished" is in the folder
/// until all is written; an export that was interrupted goes on after the files that it finished.
/// Needs twice the memory of the largest tensor at most, and 32 MiB where rows of one side are not
/// columns of the other. `progress`: bytes that are written, and their number. Throws ConfigError
/// when the folder holds another model, OutputError when it cannot be written.
void write_export(const TensorSource& source, const ExportPlan& plan, const SideFiles& side_files,
                  const Place& out,
                  const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// The files of a tokenizer in a folder. Throws ConfigError when there are none.
[[nodiscard]] SideFiles tokenizer_files(const Place& folder);
/// Those, if there are any, and config.json and generation_config.json.
[[nodiscard]] SideFiles files_next_to_weights(const Place& folder);

}  // namespace trellis::checkpoint::hugging_face
