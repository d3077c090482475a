#include "trainer/files/checkpoint/formats/hugging_face/hugging_face_source.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/formats/hugging_face/box_copy.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::hugging_face {
namespace {

constexpr std::int64_t kMostConfigBytes = std::int64_t{1} << 20;

std::string config_of(const Place& place) {
  const std::string where = join_path(place.address(), kConfigFile);
  if (!place.has(kConfigFile))
    throw ConfigError(where +
                      ": there is no such file; expected one that names the model_type and "
                      "the sizes of the model");
  return place.storage->read_text(join_path(place.path, kConfigFile), kMostConfigBytes);
}

/// GPT-2's folder on the hub has names without it.
std::string prefix_of(const HubConfig& config, const HubFolder& folder) {
  const std::string prefix = base_prefix(config);
  const auto has = [&](const std::string& with) {
    return folder.tensors().contains(embedding_name(config, with));
  };
  return !has(prefix) && has("") ? "" : prefix;
}

}  // namespace

HuggingFaceSource::HuggingFaceSource(const Place& place)
    : folder_(place),
      config_text_(config_of(place)),
      config_(read_hub_config(config_text_, join_path(place.address(), kConfigFile))) {
  map_ = weight_map(config_, prefix_of(config_, folder_), folder_.tensors().contains(kHead));
  check_tensors();
  make_entries();
}

void HuggingFaceSource::check_tensors() const {
  Problems problems;
  std::set<std::string> known;
  for (const NamedTensor& expected : map_.hub) {
    known.insert(expected.name);
    const auto found = folder_.tensors().find(expected.name);
    if (found == folder_.tensors().end()) {
      problems.add(address(), "has no tensor " + expected.name + " " + text_of(expected.shape) +
                                  ", which a " + config_.model_type +
                                  " of the sizes in config.json has");
    } else if (found->second.meta.shape != expected.shape) {
      problems.add(folder_.address_of(found->second.file),
                   "tensor " + expected.name + ": expected the shape " + text_of(expected.shape) +
                       " by the sizes in config.json, got " + text_of(found->second.meta.shape));
    }
  }
  for (const auto& [name, tensor] : folder_.tensors()) {
    if (!known.contains(name) && !is_derived_name(name))
      problems.add(folder_.address_of(tensor.file),
                   "tensor " + terminal_line(name) + ": a " + config_.model_type +
                       " has none of this name: the weights are of another architecture than "
                       "config.json says");
  }
  problems.throw_if_any();
}

void HuggingFaceSource::make_entries() {
  std::map<std::string, DType> dtypes;
  Problems problems;
  for (std::size_t i = 0; i < map_.pieces.size(); ++i) {
    const MapPiece& piece = map_.pieces[i];
    const std::string& key = map_.native[piece.native].name;
    const std::string& name = map_.hub[piece.hub].name;
    const HubFolder::Tensor& stored = folder_.tensors().at(name);
    pieces_of_[key].push_back(i);
    const DType first = dtypes.emplace(key, stored.meta.dtype).first->second;
    if (first != stored.meta.dtype)
      problems.add(folder_.address_of(stored.file),
                   "tensor " + name + ": expected " + trellis::checkpoint::name(first) +
                       " as the others of " + key + ", got " +
                       trellis::checkpoint::name(stored.meta.dtype));
  }
  problems.throw_if_any();
  for (const NamedTensor& native : map_.native)
    entries_.push_back({native.name, dtypes.at(native.name), native.shape});
  std::ranges::sort(entries_, {}, &TensorEntry::key);
}

void HuggingFaceSource::read(const TensorEntry& tensor, const Box& box,
                             std::span<std::byte> into) const {
  const std::int64_t width = element_bytes(tensor.dtype);
  std::vector<std::byte> part;
  for (const std::size_t i : pieces_of_.at(tensor.key)) {
    const MapPiece& piece = map_.pieces[i];
    const auto [hub, native] = part_in_native(piece, box);
    if (native.elements() == 0) continue;
    const HubFolder::Tensor& stored = folder_.tensors().at(map_.hub[piece.hub].name);
    if (!piece.transposed && native == box) return folder_.read(stored, hub, into);
    part.resize(static_cast<std::size_t>(hub.elements() * width));
    folder_.read(stored, hub, part);
    Box target = native;
    for (std::size_t axis = 0; axis < box.offset.size(); ++axis)
      target.offset[axis] -= box.offset[axis];
    copy_box({part, hub.shape}, {Shape(hub.shape.size(), 0), hub.shape}, {into, box.shape}, target,
             width, piece.transposed);
  }
}

}  // namespace trellis::checkpoint::hugging_face
