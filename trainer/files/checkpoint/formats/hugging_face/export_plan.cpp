#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/convert.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_writer.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::hugging_face {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 22;

const TensorEntry* find(const TensorSource& source, const std::string& key) {
  const auto found = std::ranges::lower_bound(source.tensors(), key, {}, &TensorEntry::key);
  return found != source.tensors().end() && found->key == key ? &*found : nullptr;
}

/// The tensor of the source that a weight is made of; null: it has none.
const TensorEntry* origin(const TensorSource& source, const std::string& key,
                          std::optional<DType> wanted) {
  const TensorEntry* weight = find(source, key);
  const DType dtype = wanted ? *wanted : weight != nullptr ? weight->dtype : DType::kFloat32;
  const std::string from = source_key(key, dtype, [&](const std::string& name) {
    const TensorEntry* entry = find(source, name);
    return entry != nullptr ? std::optional(entry->dtype) : std::nullopt;
  });
  return from.empty() ? nullptr : find(source, from);
}

bool fits(const NamedTensor& expected, const Shape& got) {
  if (expected.shape == got) return true;
  if (!expected.is_table || got.size() != 2) return false;
  return got[1] == expected.shape[1] && got[0] > expected.shape[0];
}

/// Finds the source's tensor of each native one of the map.
std::vector<TensorEntry> origins(const TensorSource& source, const ExportOptions& options,
                                 const WeightMap& map, Problems& problems) {
  std::vector<TensorEntry> from;
  for (const NamedTensor& native : map.native) {
    const TensorEntry* entry = origin(source, native.name, options.dtype);
    if (entry == nullptr) {
      problems.add(source.address(), "has no " + native.name + " " + text_of(native.shape) +
                                         ", which a model of " + options.config_place + " has");
    } else if (!fits(native, entry->shape)) {
      problems.add(source.address(), entry->key + ": expected the shape " + text_of(native.shape) +
                                         " by " + options.config_place + ", got " +
                                         text_of(entry->shape));
    } else if (options.dtype && !is_convertible(entry->dtype, *options.dtype)) {
      problems.add(source.address(), entry->key + ": " + name(entry->dtype) +
                                         " cannot be written as " + name(*options.dtype));
    }
    from.push_back(entry != nullptr ? *entry : TensorEntry{native.name, {}, native.shape});
  }
  return from;
}

/// True if two tensors hold the same bytes.
bool are_equal(const TensorSource& source, const TensorEntry& a, const TensorEntry& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  bool equal = true;
  std::vector<std::byte> left, right;
  for_each_piece(a.shape, kPieceElements, [&](const Box& piece) {
    if (!equal) return;
    left.resize(static_cast<std::size_t>(piece.elements() * element_bytes(a.dtype)));
    right.resize(left.size());
    source.read(a, piece, left);
    source.read(b, piece, right);
    equal = left == right;
  });
  return equal;
}

/// An output layer that config.json says is the embedding; it is not written.
std::string check_tied_head(const TensorSource& source, const HubConfig& config,
                            const ExportOptions& options, Problems& problems) {
  if (!config.tied_embeddings) return "";
  const WeightMap map = weight_map(config, base_prefix(config), /*with_head=*/true);
  const TensorEntry* head = find(source, map.native.back().name);
  const TensorEntry* embedding = find(source, map.native.front().name);
  if (head == nullptr) return "";
  if (embedding != nullptr && !are_equal(source, *head, *embedding))
    problems.add(source.address(), head->key + " differs from " + embedding->key + ", and " +
                                       options.config_place +
                                       " says that it is the same (tie_word_embeddings); write "
                                       "false there to keep both");
  return head->key;
}

/// Nothing that the source has may be lost.
void check_rest(const TensorSource& source, const WeightMap& map, const std::string& tied_head,
                const ExportOptions& options, Problems& problems) {
  std::set<std::string> known{tied_head};
  for (const NamedTensor& native : map.native) known.insert(native.name);
  for (const TensorEntry& entry : source.tensors()) {
    if (!parse_state_key(entry.key).state.empty() || known.contains(entry.key)) continue;
    problems.add(source.address(), "has " + terminal_line(entry.key) + " " + text_of(entry.shape) +
                                       ", which a model of " + options.config_place +
                                       " does not have: it would be lost");
  }
}

std::string shard_name(std::size_t number, std::size_t count) {
  if (count == 1) return "model.safetensors";
  const auto five = [](std::size_t n) {
    const std::string text = std::to_string(n);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return "model-" + five(number) + "-of-" + five(count) + ".safetensors";
}

/// As another folder's index says; empty: it does not name every tensor, or one file alone.
std::vector<ExportShard> shards_as(const std::map<std::string, std::string>& files,
                                   const WeightMap& map, const std::vector<std::int64_t>& bytes) {
  std::map<std::string, ExportShard> shards;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto found = files.find(map.hub[i].name);
    if (found == files.end() || !found->second.ends_with(".safetensors")) return {};
    ExportShard& shard = shards[found->second];
    shard.file = found->second;
    shard.tensors.push_back(i);
    shard.bytes += bytes[i];
  }
  std::vector<ExportShard> list;
  for (auto& [file, shard] : shards) list.push_back(std::move(shard));
  return list.size() > 1 ? list : std::vector<ExportShard>{};
}

}  // namespace

std::vector<ExportShard> split_into_shards(const std::vector<std::int64_t>& bytes,
                                           std::int64_t max_bytes) {
  std::vector<ExportShard> shards;
  ExportShard current;
  const auto close = [&](ExportShard& shard) {
    shards.push_back(std::move(shard));
    shard = {};
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > max_bytes) {
      shards.push_back({"", {i}, bytes[i]});
      continue;
    }
    if (current.bytes + bytes[i] > max_bytes) close(current);
    current.tensors.push_back(i);
    current.bytes += bytes[i];
  }
  if (!current.tensors.empty()) close(current);
  for (std::size_t i = 0; i < shards.size(); ++i) shards[i].file = shard_name(i + 1, shards.size());
  return shards;
}

ExportPlan plan_export(const TensorSource& source, const ExportOptions& options) {
  const HubConfig config = read_hub_config(options.config_text, options.config_place);
  ExportPlan plan;
  plan.map = weight_map(config, base_prefix(config), /*with_head=*/false);
  Problems problems;
  plan.from = origins(source, options, plan.map, problems);
  check_rest(source, plan.map, check_tied_head(source, config, options, problems), options,
             problems);
  problems.throw_if_any();
  plan.dtypes.resize(plan.map.hub.size());
  for (const MapPiece& piece : plan.map.pieces)
    plan.dtypes[piece.hub] = options.dtype.value_or(plan.from[piece.native].dtype);
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < plan.map.hub.size(); ++i) {
    const std::int64_t elements = elements_of(plan.map.hub[i].shape);
    bytes.push_back(elements * element_bytes(plan.dtypes[i]));
    plan.bytes += bytes.back();
    plan.parameters += elements;
  }
  plan.shards = shards_as(options.files, plan.map, bytes);
  if (plan.shards.empty()) plan.shards = split_into_shards(bytes, options.max_shard_bytes);
  return plan;
}

std::string ExportPlan::to_string() const {
  std::string text;
  for (const ExportShard& shard : shards) {
    for (const std::size_t i : shard.tensors)
      text += shard.file + "  " + map.hub[i].name + "  " + name(dtypes[i]) + " " +
              text_of(map.hub[i].shape) + "\n";
  }
  return text;
}

}  // namespace trellis::checkpoint::hugging_face
