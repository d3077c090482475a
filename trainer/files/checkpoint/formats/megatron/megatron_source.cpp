#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::megatron {
namespace {

constexpr const char* kIndexFile = ".metadata";

[[noreturn]] void refuse(const Place& place, const std::string& text) {
  throw ConfigError(place.address() + ": " + text);
}

/// Throws for what looks like Megatron's and is not read.
void check_backend(const Place& place) {
  if (place.path.ends_with(".nemo"))
    refuse(place,
           "a .nemo archive is not read: expected a folder of a distributed checkpoint; unpack it "
           "with NeMo and save it with dist_ckpt_format: torch_dist");
  if (!place.has(kMetadataFile)) {
    refuse(place, place.has(kIndexFile)
                      ? "no metadata.json: the save was interrupted; use an earlier checkpoint"
                      : "a folder per rank (mp_rank_…) is not read; save it again with "
                        "--ckpt-format torch_dist");
  }
  std::string backend;
  try {
    const auto document =
        nlohmann::json::parse(place.storage->read_text(join_path(place.path, kMetadataFile)));
    backend = document.at("sharded_backend").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    refuse(place, std::string(kMetadataFile) + ": " + terminal_line(error.what()) +
                      "; the checkpoint is damaged");
  }
  if (backend == "torch_dist") return;
  refuse(place, "sharded_backend is '" + terminal_line(backend) + "': expected torch_dist" +
                    (backend == "zarr" ? "; convert it with Megatron's tools (zarr is deprecated "
                                         "there too)"
                                       : ""));
}

/// The prefix of a model's keys, such as "module.", below `state`; none: no such model.
std::optional<std::string> model_prefix(const DcpMetadata& metadata, const std::string& state) {
  for (const char* anchor : {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight",
                             "output_layer.weight"}) {
    for (const auto& [key, tensor] : metadata.tensors) {
      if (!key.starts_with(state) || !key.ends_with(anchor)) continue;
      const std::string prefix =
          key.substr(state.size(), key.size() - state.size() - std::string_view(anchor).size());
      const bool is_other_state = state.empty() && key.starts_with("optimizer.");
      if (!is_other_state && (prefix.empty() || prefix.ends_with('.'))) return prefix;
    }
  }
  return std::nullopt;
}

/// "exp_avg", … of all keys "optimizer.state.<state>.…".
std::set<std::string> states_of(const DcpMetadata& metadata) {
  std::set<std::string> states;
  for (const auto& [key, tensor] : metadata.tensors) {
    if (const StateKey parsed = parse_state_key(key); !parsed.state.empty())
      states.insert(parsed.state);
  }
  return states;
}

bool is_layer_number(const std::string& key) {
  const std::size_t at = std::string_view(kLayers).size();
  return key.starts_with(kLayers) && key.size() > at && key[at] >= '0' && key[at] <= '9';
}

std::int64_t number_of(const Value& arguments, const char* name) {
  const Value* value = arguments.find(Value(name));
  return value != nullptr && value->is(Value::Kind::kInt)
             ? std::max<std::int64_t>(0, value->as_int())
             : 0;
}

}  // namespace

std::string iteration_folder(std::int64_t step) {
  constexpr std::size_t kDigits = 7;
  const std::string number = std::to_string(step);
  return "iter_" + std::string(kDigits - std::min(kDigits, number.size()), '0') + number;
}

bool is_at(const Place& place) {
  return place.path.ends_with(".nemo") || place.has(kMetadataFile) || place.has(kIndexFile) ||
         place.has("mp_rank_00") || place.has("mp_rank_00_000");
}

MegatronSource::MegatronSource(const Place& folder, const AttentionSizes& attention)
    : address_(folder.address()), attention_(attention) {
  check_backend(folder);
  const Place place = native::with_checksums(folder);
  reader_ = std::make_unique<DcpReader>(place.storage, place.path);
  read_common(place);
  const auto prefix = model_prefix(reader_->metadata(), "");
  if (prefix) add_state("", *prefix);
  for (const std::string& state : states_of(reader_->metadata())) {
    if (const auto below = model_prefix(reader_->metadata(), state_prefix(state)))
      add_state(state, *below);
  }
  if (entries_.empty())
    refuse(place,
           "holds no weights of a decoder: expected embedding.word_embeddings.weight or "
           "decoder.final_layernorm.weight among its tensors");
  for (auto& [key, entry] : entries_) {
    std::int64_t rows = 0;
    for (const Piece& piece : pieces_.at(key)) rows += piece.rows;
    if (!entry.shape.empty()) entry.shape[0] = rows;
    tensors_.push_back(entry);
  }
  entries_.clear();
}

MegatronSource::~MegatronSource() = default;

void MegatronSource::read_common(const Place& place) {
  if (!place.has(kCommonFile)) return;
  const TorchFileReader file(place.storage->open(join_path(place.path, kCommonFile)),
                             {"argparse.Namespace"});
  common_ = file.root();
  const Value* arguments = common_.find(Value("args"));
  if (arguments == nullptr || attention_.heads > 0) return;
  attention_.heads = number_of(*arguments, "num_attention_heads");
  const Value* grouped = arguments->find(Value("group_query_attention"));
  if (grouped != nullptr && grouped->is(Value::Kind::kBool) && grouped->as_bool())
    attention_.kv_heads = number_of(*arguments, "num_query_groups");
}

SavedPoint MegatronSource::point() const {
  const Value* arguments = common_.find(Value("args"));
  std::int64_t samples = number_of(common_, "consumed_train_samples");
  if (samples == 0 && arguments != nullptr)
    samples = number_of(*arguments, "consumed_train_samples");
  return {number_of(common_, "iteration"), samples};
}

/// A tensor with an axis of layers gives one weight per layer.
void MegatronSource::add_state(const std::string& state, const std::string& prefix) {
  const std::string begin = (state.empty() ? "" : state_prefix(state)) + prefix;
  ShapeOf shapes;
  std::map<std::string, Piece> places;
  std::map<std::string, DType> dtypes;
  for (const auto& [key, tensor] : reader_->metadata().tensors) {
    if (!key.starts_with(begin) || (state.empty() && key.starts_with("optimizer."))) continue;
    const std::string name = key.substr(begin.size());
    const bool is_stacked =
        name.starts_with(kLayers) && !is_layer_number(name) && !tensor.meta.shape.empty();
    if (!is_stacked) {
      shapes[name] = tensor.meta.shape;
      places[name] = {key};
      dtypes[name] = tensor.meta.dtype;
      continue;
    }
    const std::string below = name.substr(std::string_view(kLayers).size());
    for (std::int64_t layer = 0; layer < tensor.meta.shape[0]; ++layer) {
      const std::string of_layer = kLayers + std::to_string(layer) + "." + below;
      shapes[of_layer] = {tensor.meta.shape.begin() + 1, tensor.meta.shape.end()};
      places[of_layer] = {key, {layer}};
      dtypes[of_layer] = tensor.meta.dtype;
    }
  }
  for (const MegatronWeight& weight : from_megatron(shapes, attention_, address_)) {
    const std::string name = key_with_layer(weight);
    Piece place = places.at(name);
    if (weight.expert >= 0) place.lead.push_back(weight.expert);
    for (const RowBlock& block : weight.blocks)
      add_piece(state, weight, block, place, dtypes.at(name));
  }
}

void MegatronSource::add_piece(const std::string& state, const MegatronWeight& weight,
                               const RowBlock& block, const Piece& piece, DType dtype) {
  const std::string key = StateKey{state, block.key}.text();
  entries_.emplace(key, TensorEntry{key, dtype, weight.shape});
  pieces_[key].push_back({piece.tensor, piece.lead, block.first, block.native_first, block.rows});
}

/// `wanted`: a box of the folder's tensor without its first axes; it fills the rows of `box` from
/// wanted.offset[0] − piece.first + piece.native_first on.
void MegatronSource::read_chunks(const Piece& piece, Box wanted, const Box& box, DType dtype,
                                 std::span<std::byte> into) const {
  const std::size_t first = piece.lead.size();
  wanted.offset.insert(wanted.offset.begin(), piece.lead.begin(), piece.lead.end());
  wanted.shape.insert(wanted.shape.begin(), first, 1);
  const DcpTensor& tensor = reader_->metadata().tensors.at(piece.tensor);
  std::int64_t found = 0;
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    const DcpChunk& chunk = tensor.chunks[i];
    const Box common = intersection(wanted, {chunk.offsets, chunk.sizes});
    if (common.elements() == 0) continue;
    found += common.elements();
    BoxCopy copy{chunk.sizes, common.offset, box.shape, common.offset, common.shape};
    for (std::size_t axis = 0; axis < common.offset.size(); ++axis)
      copy.from_offset[axis] -= chunk.offsets[axis];
    copy.into_shape.insert(copy.into_shape.begin(), first, 1);
    std::fill_n(copy.into_offset.begin(), first, 0);
    for (std::size_t axis = first; axis < copy.into_offset.size(); ++axis)
      copy.into_offset[axis] -= box.offset[axis - first];
    if (copy.into_offset.size() > first)
      copy.into_offset[first] += piece.native_first - piece.first;
    read_box(
        copy, element_bytes(dtype),
        [&](std::int64_t first_byte, std::span<std::byte> bytes) {
          reader_->read_chunk(piece.tensor, i, first_byte, bytes);
        },
        into);
  }
  if (found != wanted.elements())
    throw ConfigError(address_ + ": of " + terminal_line(piece.tensor) + " " +
                      text_of(wanted.shape) + " at " + text_of(wanted.offset) + " it holds " +
                      std::to_string(found) + " elements, expected " +
                      std::to_string(wanted.elements()) + "; the checkpoint is damaged");
}

void MegatronSource::read(const TensorEntry& tensor, const Box& box,
                          std::span<std::byte> into) const {
  for (const Piece& piece : pieces_.at(tensor.key)) {
    Box rows = box;
    if (!box.shape.empty()) {
      const std::int64_t first = std::max(box.offset[0], piece.native_first),
                         end = std::min(box.offset[0] + box.shape[0],
                                        piece.native_first + piece.rows);
      if (end <= first) continue;
      rows.offset[0] = first - piece.native_first + piece.first;
      rows.shape[0] = end - first;
    }
    read_chunks(piece, rows, box, tensor.dtype, into);
  }
}

}  // namespace trellis::checkpoint::megatron
