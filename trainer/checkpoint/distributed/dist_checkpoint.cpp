#include "trainer/checkpoint/distributed/dist_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/validate.h"

namespace trellis::checkpoint::distributed {
namespace {

/// Identifies a shard, whichever rank has a copy.
std::string id_of(const ShardedTensor& what) {
  return what.key + " " + text_of(what.global_offset);
}

/// `data` with the axes that are prepended.
at::Tensor in_global_axes(const Shard& shard) { return shard.data.view(shard.what.box().shape); }

void check_shard(const std::string& name, const Shard& shard) {
  const ShardedTensor& what = shard.what;
  if (shard.data.sizes().vec() != what.local_shape ||
      dtype_of(shard.data.scalar_type()) != what.dtype)
    throw ConfigError(name + ": expected data of " + checkpoint::name(what.dtype) + " " +
                      text_of(what.local_shape) + " as its sharded tensor says, got " +
                      checkpoint::name(dtype_of(shard.data.scalar_type())) + " " +
                      text_of(shard.data.sizes().vec()));
}

/// Functions that are called for the shards and objects of a dict.
struct Visit {
  std::function<void(Shard& shard)> shard;
  std::function<void(ObjectShard& object)> object;
};

void for_each(StateDict& state, const Visit& visit) {
  for (auto& [name, item] : state) {
    if (auto* shard = std::get_if<Shard>(&item)) {
      check_shard(name, *shard);
      visit.shard(*shard);
    } else if (auto* object = std::get_if<ObjectShard>(&item)) {
      visit.object(*object);
    }
  }
}

/// The dicts of factories, by the factory's name.
std::map<std::string, StateDict> built_of(const StateDict& state) {
  std::map<std::string, StateDict> built;
  for (const auto& [name, item] : state) {
    if (const auto* factory = std::get_if<ShardedTensorFactory>(&item))
      built[name] = factory->build(factory->key, factory->data, factory->replica_id);
  }
  return built;
}

Value common_of(const StateDict& state) {
  Value common = Value::dict();
  for (const auto& [name, item] : state) {
    if (const auto* value = std::get_if<Value>(&item)) common.set(name, *value);
  }
  return common;
}

}  // namespace

/// Data that a rank saves, and where they are after they were written.
struct DistCheckpoint::Part {
  std::vector<Shard> shards;
  std::vector<ObjectShard> objects;
  Value common;
  std::vector<std::pair<ShardedTensor, DcpPlace>> written;
  std::map<std::string, DcpPlace> written_objects;
};

DistCheckpoint::DistCheckpoint(Place folder, int world_size)
    : folder_(std::move(folder)),
      world_size_(world_size),
      parts_(static_cast<std::size_t>(world_size)),
      names_(world_size, "dist_checkpoint") {}
DistCheckpoint::~DistCheckpoint() = default;

DistCheckpoint::Part& DistCheckpoint::part_of(const runtime::RankContext& rank) {
  TRELLIS_CHECK(static_cast<int>(rank.process_ranks().size()) == world_size_,
                "the ranks of a DistCheckpoint run in one process");
  return parts_[static_cast<std::size_t>(rank.rank())];
}

void DistCheckpoint::save(runtime::RankContext& rank, const StateDict& state, bool parallel) {
  const at::NoGradGuard no_grad;
  Part& own = part_of(rank) = {};
  const auto take = [&own](StateDict dict) {
    for_each(dict, {[&](Shard& shard) { own.shards.push_back(shard); },
                    [&](ObjectShard& object) { own.objects.push_back(object); }});
  };
  take(state);
  for (auto& [name, built] : built_of(state)) take(std::move(built));
  own.common = common_of(state);
  rank.host_barrier(kStorageTimeout);
  if (rank.rank() == 0) {
    make_plan(parallel);
    unmark();
  }
  rank.host_barrier(kStorageTimeout);
  write(rank.rank());
  rank.host_barrier(kStorageTimeout);
  if (rank.rank() == 0) finish();
  rank.host_barrier(kStorageTimeout);
}

void DistCheckpoint::make_plan(bool parallel) {
  std::vector<ShardedTensor> shards;
  std::vector<ShardedObject> objects;
  std::map<std::string, Transfer> transfers;
  for (int rank = 0; rank < world_size_; ++rank) {
    const Part& part = parts_[static_cast<std::size_t>(rank)];
    for (const Shard& shard : part.shards) {
      shards.push_back(shard.what);
      if (!parallel && !is_main_replica(shard.what.replica_id)) continue;
      Transfer& transfer = transfers[id_of(shard.what)];
      transfer.id = id_of(shard.what);
      transfer.bytes = static_cast<std::int64_t>(shard.data.nbytes());
      if (transfer.holders.empty() || transfer.holders.back() != rank)
        transfer.holders.push_back(rank);
    }
    for (const ObjectShard& object : part.objects) objects.push_back(object.what);
  }
  validate_sharding(shards);
  validate_sharding(objects);
  std::vector<Transfer> list;
  for (auto& [id, transfer] : transfers) list.push_back(std::move(transfer));
  plan_ = distribute(std::move(list));
}

/// A checkpoint that is there is none from its first file on that is replaced.
void DistCheckpoint::unmark() {
  if (folder_.has(megatron::kMetadataFile))
    folder_.storage->remove_file(join_path(folder_.path, megatron::kMetadataFile));
}

void DistCheckpoint::write(int rank) {
  Part& own = parts_[static_cast<std::size_t>(rank)];
  DcpFileWriter file(*folder_.storage, folder_.path, dcp_file_name(rank, 0));
  std::set<std::string> done;
  for (const Shard& shard : own.shards) {
    const std::string id = id_of(shard.what);
    if (plan_.rank_of(id) != rank || !done.insert(id).second) continue;
    const at::Tensor host = shard.data.detach().cpu().contiguous();
    file.begin_chunk({.dtype = shard.what.dtype, .shape = shard.what.box().shape});
    file.write({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
    own.written.emplace_back(shard.what, file.end_chunk());
  }
  for (const ObjectShard& object : own.objects) {
    if (is_main_replica(object.what.replica_id))
      own.written_objects[object.what.unique_key()] = file.add_object(Value::list({object.data}));
  }
  file.close();
}

void DistCheckpoint::finish() {
  DcpMetadata metadata;
  for (Part& part : parts_) {
    for (auto& [what, place] : part.written) {
      DcpTensor& tensor = metadata.tensors[what.key];
      tensor.meta = {.dtype = what.dtype, .shape = what.global_shape};
      tensor.chunks.push_back({what.global_offset, what.box().shape, std::move(place)});
    }
    metadata.objects.merge(part.written_objects);
    if (part.common != parts_.front().common)
      log_warning(folder_.address() +
                  ": values that are no shards differ between ranks; those of "
                  "rank 0 are saved");
  }
  for (auto& [key, tensor] : metadata.tensors)
    std::ranges::sort(tensor.chunks, {}, &DcpChunk::offsets);
  TorchFileWriter(folder_.storage->create(join_path(folder_.path, megatron::kCommonFile)))
      .finish(parts_.front().common);
  write_dcp_metadata(*folder_.storage, folder_.path, metadata);
  folder_.storage->write_text(join_path(folder_.path, megatron::kMetadataFile),
                              R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
                              R"("common_backend": "torch", "common_backend_version": 1})");
}

void DistCheckpoint::open() {
  if (!folder_.has(megatron::kMetadataFile))
    throw ConfigError(folder_.address() + ": expected a distributed checkpoint, whose " +
                      megatron::kMetadataFile +
                      " is written last, found none; load a complete one");
  reader_ = std::make_unique<DcpReader>(folder_.storage, folder_.path);
  index_.clear();
  items_.clear();
  std::vector<LoadItem> sizes;
  for (const auto& [key, tensor] : reader_->metadata().tensors) {
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const DcpChunk& chunk = tensor.chunks[i];
      index_[key].push_back({items_.size(),
                             tensor.meta.shape,
                             chunk.offsets,
                             {Shape(chunk.sizes.size(), 0), chunk.sizes}});
      items_.push_back({key, i});
      sizes.push_back(
          {id_of({.key = key, .global_offset = chunk.offsets}), {tensor.meta.dtype, chunk.sizes}});
    }
  }
  shared_.emplace(std::move(sizes), world_size_);
}

std::vector<LoadCopy> DistCheckpoint::plan_load(const std::vector<LiveTensor>& wanted) const {
  Problems problems;
  std::vector<LoadCopy> copies;
  for (const LiveTensor& tensor : wanted) {
    const ShardedPart& part = tensor.parts.front();
    if (!index_.contains(part.tensor.key)) {
      problems.add(folder_.address(), "has no " + part.tensor.key);
      continue;
    }
    copies.push_back({&tensor, plan_reads(part, part.tensor.key, index_)});
    if (copies.back().reads.elements < part.local.elements()) tensor.values.zero_();
  }
  problems.throw_if_any();
  return copies;
}

at::Tensor DistCheckpoint::read(std::size_t item) const {
  const auto& [key, chunk] = items_[item];
  const DcpTensor& tensor = reader_->metadata().tensors.at(key);
  at::Tensor content = at::empty(tensor.chunks[chunk].sizes,
                                 at::TensorOptions().dtype(scalar_type_of(tensor.meta.dtype)));
  reader_->read_chunk(key, chunk, 0,
                      {static_cast<std::byte*>(content.mutable_data_ptr()), content.nbytes()});
  return content;
}

void DistCheckpoint::read_objects(StateDict& state, const LoadStrictness& mode) const {
  const auto read = [&](ObjectShard& object) {
    const std::string key = object.what.unique_key();
    const bool raises = !mode.is_checked || mode.unexpected == LoadStrictness::Action::kRaise;
    if (!raises && !reader_->metadata().objects.contains(key)) return;
    const auto file = reader_->open_object(key);
    const Value::List& items = file->root().items();  // a list of it is Megatron-core's form
    if (items.size() != 1)
      throw ConfigError(file->name() + ": expected a list of one value, got " +
                        std::to_string(items.size()));
    object.data = items.front();
  };
  for_each(state, {[](Shard&) {}, read});
}

void DistCheckpoint::set_common(StateDict& state) const {
  std::erase_if(state, [](const auto& item) { return std::holds_alternative<Value>(item.second); });
  const TorchFileReader file(folder_.storage->open(join_path(folder_.path, megatron::kCommonFile)));
  for (const auto& [name, value] : file.root().as_dict())
    state.try_emplace(name.as_string(), value);
}

KeyDifference DistCheckpoint::load(runtime::RankContext& rank, StateDict& state,
                                   const std::string& strictness) {
  const at::NoGradGuard no_grad;
  (void)part_of(rank);
  const LoadStrictness& mode = load_strictness(strictness);
  rank.host_barrier(kStorageTimeout);
  if (rank.rank() == 0) open();
  rank.host_barrier(kStorageTimeout);
  std::map<std::string, StateDict> built = built_of(state);
  std::vector<LiveTensor> wanted;
  const auto ask = [&](StateDict& dict) {
    for_each(dict, {[&](Shard& shard) {
                      const Box box = shard.what.box();
                      ShardedTensor what = shard.what;
                      what.local_shape = box.shape;
                      what.prepend_axis_num = 0;
                      LiveTensor& live = wanted.emplace_back();
                      live.values = in_global_axes(shard);
                      live.parts = {{std::move(what), {Shape(box.shape.size(), 0), box.shape}}};
                    },
                    [](ObjectShard&) {}});
  };
  ask(state);
  for (auto& [name, dict] : built) ask(dict);
  StoredKeys stored{{}, {}, folder_.address()};
  for (const auto& [key, parts] : index_) stored.keys.insert(key);
  stored.type = [this](const std::string& key) -> std::optional<DType> {
    const auto found = reader_->metadata().tensors.find(key);
    return found == reader_->metadata().tensors.end() ? std::nullopt
                                                      : std::optional(found->second.meta.dtype);
  };
  KeyDifference difference = reconcile(rank, names_, wanted, stored, mode);
  shared_->load(rank, plan_load(wanted),
                {[this](std::size_t item, const at::Tensor&) { return read(item); }});
  read_objects(state, mode);
  for (auto& [name, dict] : built) {
    read_objects(dict, mode);
    auto& factory = std::get<ShardedTensorFactory>(state.at(name));
    factory.data.copy_(factory.merge(dict));
  }
  set_common(state);
  rank.host_barrier(kStorageTimeout);
  return difference;
}

}  // namespace trellis::checkpoint::distributed
