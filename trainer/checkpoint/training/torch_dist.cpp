#include "trainer/checkpoint/training/torch_dist.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/output_error.h"
#include "trainer/checkpoint/formats/megatron/chunks.h"
#include "trainer/checkpoint/formats/megatron/megatron_folder.h"
#include "trainer/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/checkpoint/state/torch_dtype.h"

namespace trellis::checkpoint {
namespace {

using megatron::Chunk;
using native::FileJob;

constexpr std::int64_t kFileBytes = std::int64_t{4} << 30;

/// Tensors of a rank that go into the same files.
struct Content {
  std::vector<at::Tensor> tensors;
  std::map<std::string, std::vector<megatron::LocalPart>> parts;  ///< by state

  /// `shards`: data-parallel ranks that each hold another part; those after them hold copies.
  void add(const LiveTensor& live, const at::Tensor& values, int shards) {
    for (ShardedPart part : live.parts) {
      if (!part.tensor.replica_id.empty()) part.tensor.replica_id.back() %= shards;
      if (!is_main_replica(part.tensor.replica_id)) continue;
      part.tensor.dtype = dtype_of(values.scalar_type());
      parts[live.state].push_back({tensors.size(), std::move(part)});
    }
    tensors.push_back(values);
  }
};

Content weights_of(const LiveState& live, bool save_bf16) {
  Content content;
  std::set<std::string> names;  // a tied copy on the rank of its original is left out
  for (const LiveTensor& tensor : live.model) {
    if (!names.insert(tensor.parameter).second) continue;
    const bool rounds = save_bf16 && tensor.values.is_floating_point();
    content.add(tensor, rounds ? tensor.values.to(at::kBFloat16) : tensor.values, 1);
  }
  return content;
}

megatron::ChunkMap map_of(const trainer::RunConfig& config, const LiveState& live) {
  megatron::ShapeOf shapes;
  for (const LiveTensor& tensor : live.model) {
    for (const ShardedPart& part : tensor.parts) shapes[part.tensor.key] = part.tensor.global_shape;
  }
  return {shapes,
          {config.model.num_attention_heads, config.model.num_kv_heads},
          config.model.num_layers,
          "model.dist_ckpt_format: torch_dist"};
}

at::Tensor slice_of(at::Tensor tensor, const Box& box) {
  for (std::size_t axis = 0; axis < box.shape.size(); ++axis)
    tensor = tensor.narrow(static_cast<std::int64_t>(axis), box.offset[axis], box.shape[axis]);
  return tensor;
}

void append(const Chunk& chunk, const Content& content, FileJob& job) {
  job.chunks.push_back({chunk.key,
                        {.dtype = chunk.dtype, .shape = chunk.global_shape},
                        {chunk.box.offset, chunk.box.shape},
                        job.tensors.size(),
                        chunk.slices.size()});
  for (const auto& [tensor, box] : chunk.slices)
    job.tensors.push_back(slice_of(content.tensors[tensor], box));
}

/// Of a writer's data files: "__3_0.distcp", and every second number from there on.
struct FileNames {
  int writer = 0;
  std::int64_t first = 0, count = 1;
};

/// As many files as `names` has, of about equal sizes; more where they would be too large.
std::vector<FileJob> jobs_of(const megatron::ChunkMap& map, const Content& content,
                             const std::string& folder, const FileNames& names,
                             const std::vector<int>& holders) {
  std::vector<Chunk> chunks;
  for (const auto& [state, parts] : content.parts)
    std::ranges::move(map.chunks_of(state, parts), std::back_inserter(chunks));
  std::int64_t total = 0, done = 0;
  for (const Chunk& chunk : chunks) total += chunk.bytes();
  const std::int64_t files = std::max(names.count, (total + kFileBytes - 1) / kFileBytes);
  std::map<std::int64_t, FileJob> jobs;
  for (const Chunk& chunk : chunks) {
    FileJob& job = jobs[std::min(files - 1, done * files / std::max<std::int64_t>(total, 1))];
    append(chunk, content, job);
    done += chunk.bytes();
  }
  std::vector<FileJob> list;
  for (auto& [number, job] : jobs) {
    job.path = dcp_file_name(names.writer, names.first + 2 * number);
    job.dcp_folder = folder;
    job.holders = holders;
    list.push_back(std::move(job));
  }
  return list;
}

}  // namespace

std::vector<FileJob> torch_dist_jobs(const trainer::RunConfig& config, const LiveState& live,
                                     const native::FilePlace& place,
                                     const native::FileOptions& options, std::int64_t step) {
  const std::string folder = megatron::iteration_folder(step);
  try {
    const megatron::ChunkMap map = map_of(config, live);
    std::vector<FileJob> jobs =
        jobs_of(map, weights_of(live, options.save_bf16), folder,
                {place.copies.front(), 0, std::ssize(place.copies)}, place.copies);
    Content states;
    const bool zero1 = place.place.zero1;
    const int shards = zero1 ? place.place.shards() : 1;
    for (const LiveTensor& tensor : live.optimizer) states.add(tensor, tensor.values, shards);
    const std::vector<int>& holders = zero1 ? place.state_copies : place.copies;
    std::ranges::move(
        jobs_of(map, states, folder, {holders.front(), 1, std::ssize(holders)}, holders),
        std::back_inserter(jobs));
    return jobs;
  } catch (const ConfigError& error) {
    FileJob none;
    none.path = dcp_file_name(place.copies.front(), 0);
    none.dcp_folder = folder;
    none.holders = place.copies;
    none.problem = error.what();
    return {none};
  }
}

std::string finish_torch_dist(const trainer::RunConfig& config, const Place& checkpoint,
                              const SavedPoint& point, TorchDistData data) {
  const std::string iteration = megatron::iteration_folder(point.step);
  const Place folder{checkpoint.storage, join_path(checkpoint.path, iteration)};
  try {
    if (!data.error.empty()) throw OutputError(data.error);
    DcpMetadata metadata;
    for (native::WrittenChunk& chunk : data.chunks) {
      DcpTensor& tensor = metadata.tensors[chunk.key];
      tensor.meta = chunk.meta;
      tensor.chunks.push_back(std::move(chunk.box));
    }
    for (auto& [key, tensor] : metadata.tensors)
      std::ranges::sort(tensor.chunks, {}, &DcpChunk::offsets);
    DcpFileWriter objects(*folder.storage, folder.path, dcp_file_name(config.world_size(), 0));
    megatron::add_extra_states(metadata, objects);
    objects.close();
    megatron::finish_folder(folder, metadata,
                            {config.model.num_attention_heads, config.model.num_kv_heads}, point);
    checkpoint.storage->write_text(join_path(checkpoint.path, megatron::kTrackerFile),
                                   std::to_string(point.step));
    return "";
  } catch (const Error& error) {
    log_warning(folder.address() + ": the checkpoint is not saved as torch_dist: " + error.what() +
                "; " + checkpoint.address() + " is complete, and training goes on");
    try {
      folder.storage->remove_directory(folder.path);
    } catch (const Error&) {  // without metadata.json it is taken for no checkpoint
    }
    return std::string("as torch_dist: ") + error.what();
  }
}

}  // namespace trellis::checkpoint
