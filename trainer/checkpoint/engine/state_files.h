#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/checkpoint/engine/save_messages.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/storage/storage.h"

namespace trellis::checkpoint::native {

/// A box of a tensor in a folder of DCP that consecutive tensors of a job fill, row after row.
struct ChunkJob {
  std::string key;
  TensorMeta meta;                   ///< of the whole tensor
  DcpChunk box;                      ///< without its place
  std::size_t first = 0, count = 0;  ///< tensors of the job
  /// The chunk's entry in the manifest, without its place in the file; none: the manifest does not
  /// have the chunk.
  std::optional<StoredTensor> stored = {};
};

/// A file that is to be written, of which some ranks hold the same content: a .pt file, or a data
/// file of a folder of DCP.
struct FileJob {
  std::string path;                  ///< relative to the tag
  Value root;                        ///< its tensors are indices of `tensors`
  std::vector<at::Tensor> tensors;   ///< on any device
  std::vector<StoredTensor> stored;  ///< for the manifest
  std::vector<int> holders;          ///< global ranks, ascending
  /// For each tensor: its parts in the layout-independent tensors, copies included.
  std::vector<std::vector<ShardedPart>> parts = {};
  /// For a data file of DCP: its boxes, and values by name.
  std::vector<ChunkJob> chunks = {};
  std::vector<std::pair<std::string, Value>> objects = {};
  std::string dcp_folder = {};  ///< not empty: `path` is relative to this folder of DCP below the
                                ///< tag, and may be missing in a complete checkpoint
  std::string problem = {};     ///< why such a file cannot be written
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] bool is_dcp() const { return !chunks.empty() || !objects.empty(); }
};

/// Which ranks hold copies of a rank's files.
struct FilePlace {
  RankPlace place;
  int pp_rank = 0, pp_size = 1;
  std::vector<int> copies;        ///< global ranks with the same weights, itself too, ascending
  std::vector<int> state_copies;  ///< the same of the optimizer's states
};
/// The place of rank `self`, which `parallel` belongs to, in the mesh.
[[nodiscard]] FilePlace file_place_of(const trainer::RankMesh& mesh,
                                      const trainer::ParallelState& parallel, int self, bool zero1);

/// The state that a rank saves, and the rank's place.
struct RankContent {
  const trainer::ParameterList& parameters;
  const trainer::NeuronZero1Optimizer& optimizer;
  const trainer::ParallelState& parallel;
  LiveState live;
  FilePlace place;
};

/// How files are written.
struct FileOptions {
  bool use_xser = false;   ///< a file per tensor, and one with references to them
  bool save_bf16 = false;  ///< weights are rounded to bf16
  /// Weights of which the optimizer's files have masters in more bits: their types and shapes alone
  /// are written (NxD's avoid_saving_lower_precision_weights).
  bool masters_replace_weights = false;
  bool zero1_dcp = false;  ///< states of ZeRO-1 in one folder of DCP (zero1_dcp.h)
  /// Each parameter has its own number of steps, which torch's optimizers count up in place.
  bool steps_by_parameter = false;
  Value lora_config = {};  ///< of the files of weights, under this name; None: without it
};

/// Tensors by name, as a state dict of torch.
using TensorDict = std::map<std::string, at::Tensor>;

/// A state dict of this rank's weights. A tied copy on the rank of its original is left out.
/// `with_masters`: names of those that options.masters_replace_weights is about.
[[nodiscard]] std::vector<FileJob> model_jobs(const LiveState& live, const FilePlace& place,
                                              const FileOptions& options,
                                              const std::set<std::string>& with_masters = {});
/// Weights of which `live` has masters, of this rank or of another one of its data-parallel group.
[[nodiscard]] std::set<std::string> weights_with_masters(
    const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer);
/// NxD's dict of a ZeRO-1 optimizer: state, base_state (by the number of the parameter),
/// shape_info, param_groups, sharded_master_weights; and ema_weights. With options.zero1_dcp and
/// ZeRO-1 as dcp_optimizer_jobs().
[[nodiscard]] std::vector<FileJob> optimizer_jobs(const LiveState& live,
                                                  const trainer::NeuronZero1Optimizer& optimizer,
                                                  double lr, const FilePlace& place,
                                                  const FileOptions& options);

inline constexpr const char* kBaseState = "base_state";
/// The dict of optimizer_jobs() that has a state, such as base_state.
[[nodiscard]] const char* folder_of(const std::string& state);
/// Weights that the optimizer updates.
[[nodiscard]] std::vector<const LiveTensor*> trained_weights(
    const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer);
[[nodiscard]] Value shape_info_of(const LiveState& live,
                                  const trainer::NeuronZero1Optimizer& optimizer);
[[nodiscard]] Value param_groups_of(const LiveState& live,
                                    const trainer::NeuronZero1Optimizer& optimizer, double lr);

/// Files of any dicts of tensors and values, which only a rank at the same place reads again. The
/// dict of the name "" is the root itself.
[[nodiscard]] std::vector<FileJob> dict_jobs(const std::string& path,
                                             const std::map<std::string, TensorDict>& dicts,
                                             const std::map<std::string, Value>& values,
                                             std::vector<int> holders, const FileOptions& options);

/// Writes the file under `folder`, and what the manifest says of it. Throws OutputError.
StoredFile write_job(Storage& storage, const std::string& folder, const FileJob& job,
                     Durability durability = Durability::kAtClose);
/// Writes the bytes of a box of a data file of DCP.
using WriteBox = std::function<void(DcpFileWriter& file, const ChunkJob& chunk)>;
/// A function that writes the values of the job's tensors, which must outlive it.
[[nodiscard]] WriteBox values_of(const FileJob& job);
/// Writes one box, and returns it with its place. Throws OutputError.
WrittenChunk write_chunk(DcpFileWriter& file, const ChunkJob& chunk, const WriteBox& write);
/// Writes a data file of job.dcp_folder. Throws OutputError.
void write_chunks(Storage& storage, const std::string& folder, const FileJob& job,
                  const WriteBox& write, Written& written);
/// write_job() for a file of one value without tensors.
StoredFile write_value(Storage& storage, const std::string& path, const Value& value);

}  // namespace trellis::checkpoint::native
