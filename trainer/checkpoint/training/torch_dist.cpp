#include "trainer/checkpoint/training/torch_dist.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/output_error.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/megatron/chunks.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_folder.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"

namespace trellis::checkpoint {
namespace {

using megatron::Chunk;
using native::FileJob;

constexpr std::int64_t kFileBytes = std::int64_t{4} << 30;
constexpr int kFilesPerRank = 2;  ///< NeMo's default of dist_ckpt_torch_dist_multiproc

/// Tensors of a rank that go into the same files.
struct Content {
  std::vector<at::Tensor> tensors;
  std::vector<std::vector<ShardedPart>> copies;                   ///< of each: all that it is
  std::map<std::string, std::vector<megatron::LocalPart>> parts;  ///< by state: what is saved of it

  /// `shards`: data-parallel ranks that each hold another part; those after them hold copies, as
  /// all ranks of EP do of dense tensors.
  void add(const LiveTensor& live, const at::Tensor& values, int shards, int ep_rank) {
    const bool is_copy = shards == 1 && ep_rank > 0 && !live.of_experts;
    for (ShardedPart part : is_copy ? std::vector<ShardedPart>() : live.parts) {
      if (!part.tensor.replica_id.empty()) part.tensor.replica_id.back() %= shards;
      if (!is_main_replica(part.tensor.replica_id)) continue;
      part.tensor.dtype = dtype_of(values.scalar_type());
      parts[live.state].push_back({tensors.size(), std::move(part)});
    }
    tensors.push_back(values);
    copies.push_back(live.parts);
  }
};

void add_weights(const LiveState& live, bool save_bf16, int ep_rank, Content& content) {
  std::set<std::string> names;  // a tied copy on the rank of its original is left out
  for (const LiveTensor& tensor : live.model) {
    if (!names.insert(tensor.parameter).second) continue;
    const bool rounds = save_bf16 && tensor.values.is_floating_point();
    content.add(tensor, rounds ? tensor.values.to(at::kBFloat16) : tensor.values, 1, ep_rank);
  }
}

megatron::ChunkMap map_of(const trainer::RunConfig& config, const LiveState& live) {
  megatron::ShapeOf shapes;
  for (const LiveTensor& tensor : live.model) {
    for (const ShardedPart& part : tensor.parts) shapes[part.tensor.key] = part.tensor.global_shape;
  }
  const trainer::ModelSection& model = config.model;
  return {shapes,
          {model.num_attention_heads, model.num_kv_heads},
          {model.num_layers, /*is_there=*/!model.moe || model.moe->frequency == 1},
          "model.dist_ckpt_format: torch_dist"};
}

at::Tensor slice_of(at::Tensor tensor, const Box& box) {
  for (std::size_t axis = 0; axis < box.shape.size(); ++axis)
    tensor = tensor.narrow(static_cast<std::int64_t>(axis), box.offset[axis], box.shape[axis]);
  return tensor;
}

std::vector<ShardedPart> parts_in(const std::vector<ShardedPart>& parts, const Box& box) {
  std::vector<ShardedPart> cut;
  for (ShardedPart part : parts) {
    const Box common = intersection(part.local, box);
    if (common.elements() == 0) continue;
    for (std::size_t axis = 0; axis < common.shape.size(); ++axis)
      part.tensor.global_offset[axis] += common.offset[axis] - part.local.offset[axis];
    part.tensor.local_shape = common.shape;
    part.local = common;
    for (std::size_t axis = 0; axis < common.shape.size(); ++axis)
      part.local.offset[axis] -= box.offset[axis];
    cut.push_back(std::move(part));
  }
  return cut;
}

void append(const Chunk& chunk, const Content& content, FileJob& job) {
  job.chunks.push_back({chunk.key,
                        {.dtype = chunk.dtype, .shape = chunk.global_shape},
                        {chunk.box.offset, chunk.box.shape},
                        job.tensors.size(),
                        chunk.slices.size()});
  for (const auto& [tensor, box] : chunk.slices) {
    job.tensors.push_back(slice_of(content.tensors[tensor], box));
    job.parts.push_back(parts_in(content.copies[tensor], box));
  }
}

std::int64_t bytes_of(const std::vector<Chunk>& chunks) {
  std::int64_t bytes = 0;
  for (const Chunk& chunk : chunks) bytes += chunk.bytes();
  return bytes;
}

/// `count` lists of about equal sizes, in the order of `chunks`. None is empty where there are as
/// many chunks.
std::vector<std::vector<Chunk>> split(const std::vector<Chunk>& chunks, std::int64_t count) {
  std::vector<std::vector<Chunk>> lists(static_cast<std::size_t>(count));
  const std::int64_t total = std::max<std::int64_t>(bytes_of(chunks), 1);
  std::int64_t done = 0, list = -1, left = std::ssize(chunks);
  for (const Chunk& chunk : chunks) {
    const std::int64_t by_size = std::min(count - 1, done * count / total);
    list = std::min(std::max(by_size, count - left--), list + 1);
    lists[static_cast<std::size_t>(list)].push_back(chunk);
    done += chunk.bytes();
  }
  return lists;
}

/// Adds chunks that all `holders` have to the lists of these: a share to each, or all to the first
/// one's where `is_shared` is false.
void share(const std::vector<Chunk>& chunks, const std::vector<int>& holders, bool is_shared,
           std::map<int, std::vector<Chunk>>& by_rank) {
  const auto shares = split(chunks, is_shared ? std::ssize(holders) : 1);
  for (std::size_t i = 0; i < shares.size(); ++i)
    std::ranges::copy(shares[i], std::back_inserter(by_rank[holders[i]]));
}

/// Data files of one rank, as Megatron-core's writer processes have them.
std::vector<FileJob> jobs_of(int rank, const std::vector<Chunk>& chunks, std::int64_t files,
                             const Content& content, const FileJob& common) {
  std::vector<FileJob> jobs;
  for (const auto& list :
       split(chunks, std::max(files, (bytes_of(chunks) + kFileBytes - 1) / kFileBytes))) {
    if (list.empty()) continue;
    FileJob job = common;
    job.path = dcp_file_name(rank, std::ssize(jobs));
    for (const Chunk& chunk : list) append(chunk, content, job);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace

std::vector<FileJob> torch_dist_jobs(const trainer::RunConfig& config, const LiveState& live,
                                     const native::FilePlace& place,
                                     const native::FileOptions& options, std::int64_t step) {
  const bool zero1 = place.place.zero1;
  FileJob common;
  common.dcp_folder = megatron::iteration_folder(step);
  common.holders = place.state_copies;
  try {
    Content content;
    const int ep_rank = place.place.ep_rank;
    add_weights(live, options.save_bf16, ep_rank, content);
    for (const LiveTensor& tensor : live.optimizer)
      content.add(tensor, tensor.values, zero1 ? place.place.shards() : 1, ep_rank);
    const megatron::ChunkMap map = map_of(config, live);
    std::vector<Chunk> states;
    std::map<int, std::vector<Chunk>> by_rank;
    const trainer::DistCkptSection& section = config.model.dist_ckpt;
    for (const auto& [state, parts] : content.parts) {
      const std::vector<Chunk> chunks = map.chunks_of(state, parts);
      if (state.empty()) {
        share(chunks, place.copies, section.parallel_save, by_rank);
      } else {
        std::ranges::copy(chunks, std::back_inserter(states));
      }
    }
    share(states, common.holders, section.parallel_save, by_rank);
    std::vector<FileJob> jobs;
    for (const int rank : common.holders)
      std::ranges::move(jobs_of(rank, by_rank[rank], section.files_per_rank.value_or(kFilesPerRank),
                                content, common),
                        std::back_inserter(jobs));
    return jobs;
  } catch (const ConfigError& error) {
    common.path = dcp_file_name(common.holders.front(), 0);
    common.problem = error.what();
    return {common};
  }
}

void complete_torch_dist(const trainer::RunConfig& config, const Place& checkpoint,
                         const SavedPoint& point, native::Written& written) {
  const std::string iteration = megatron::iteration_folder(point.step);
  const Place folder{checkpoint.storage, join_path(checkpoint.path, iteration)};
  if (!written.chunk_error.empty()) throw OutputError(written.chunk_error);
  DcpMetadata metadata;
  for (native::WrittenChunk& chunk : written.chunks) {
    DcpTensor& tensor = metadata.tensors[chunk.key];
    tensor.meta = chunk.meta;
    tensor.chunks.push_back(std::move(chunk.box));
  }
  written.chunks.clear();
  for (auto& [key, tensor] : metadata.tensors)
    std::ranges::sort(tensor.chunks, {}, &DcpChunk::offsets);
  DcpFileWriter objects(*folder.storage, folder.path, dcp_file_name(config.world_size(), 0));
  megatron::add_extra_states(metadata, objects);
  objects.close();
  megatron::finish_folder(folder, metadata,
                          {config.model.num_attention_heads, config.model.num_kv_heads}, point,
                          &config.model);
  checkpoint.storage->write_text(join_path(checkpoint.path, megatron::kTrackerFile),
                                 std::to_string(point.step));
  const auto add = [&](const std::string& file) {
    native::StoredFile& stored = written.files[file];
    if (stored.xxh3_128.empty())
      stored = native::hash_file(*checkpoint.storage->open(join_path(checkpoint.path, file)));
  };
  for (const Entry& entry : folder.storage->list(folder.path, /*recursive=*/false))
    add(join_path(iteration, entry.path.substr(folder.path.size() + 1)));
  add(megatron::kTrackerFile);
}

std::string finish_torch_dist(const trainer::RunConfig& config, const Place& checkpoint,
                              const SavedPoint& point, native::Written& written) {
  const std::string iteration = megatron::iteration_folder(point.step);
  const std::string path = join_path(checkpoint.path, iteration);
  try {
    complete_torch_dist(config, checkpoint, point, written);
    return "";
  } catch (const Error& error) {
    log_warning(Place{checkpoint.storage, path}.address() +
                ": the checkpoint is not saved as torch_dist: " + error.what() + "; " +
                checkpoint.address() + " is saved without it, and training goes on");
    std::erase_if(written.files,
                  [&](const auto& file) { return file.first.starts_with(iteration + "/"); });
    written.files.erase(megatron::kTrackerFile);
    try {
      checkpoint.storage->remove_directory(path);
    } catch (const Error&) {  // without metadata.json it is taken for no checkpoint
    }
    return std::string("as torch_dist: ") + error.what();
  }
}

}  // namespace trellis::checkpoint
