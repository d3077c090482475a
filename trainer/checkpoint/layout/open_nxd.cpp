#include "trainer/checkpoint/layout/open_nxd.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/checkpoint/layout/layout_jobs.h"
#include "trainer/checkpoint/layout/nxd_form.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/conversion/model_check.h"
#include "trainer/files/checkpoint/conversion/open_checkpoint.h"
#include "trainer/files/checkpoint/formats/native/checksums.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"
#include "trainer/files/checkpoint/formats/native/stored_tensor.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_training.h"
#include "trainer/files/checkpoint/formats/nxd/stacked_experts.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/parallel_layers/rank_mesh.h"

namespace trellis::checkpoint {
namespace {

using native::FileJob;
using native::PathKey;
using native::StoredTensor;
using nxd::NxdFolder;
using trainer::RunConfig;

constexpr const char* kLayerWord = ".layers.";

/// The number of "….layers.3.…" and where it is written; −1: none.
struct LayerNumber {
  std::int64_t layer = -1;
  std::size_t begin = 0, end = 0;
};

LayerNumber layer_of(const std::string& name) {
  LayerNumber number;
  const std::size_t word = name.find(kLayerWord);
  if (word == std::string::npos) return number;
  number.begin = word + std::string_view(kLayerWord).size();
  const char* first = name.data() + number.begin;
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), number.layer);
  if (error != std::errc()) number.layer = -1;
  number.end = static_cast<std::size_t>(end - name.data());
  return number;
}

/// A file of one rank: where our tensors are in it.
class RankFile {
 public:
  RankFile(const Place& place, std::string path)
      : place_(place),
        path_(std::move(path)),
        reader_(place.storage->open(join_path(place.path, path_)), nxd::known_classes()) {
    const std::string info = native::xser_info_file(path_);
    if (place.has(info))
      info_.emplace(place.storage->open(join_path(place.path, info)), nxd::known_classes());
  }
  [[nodiscard]] const std::string& name() const { return reader_.name(); }
  [[nodiscard]] const Value& root() const { return reader_.root(); }
  /// The dict of the weights, and the keys above it.
  [[nodiscard]] std::pair<const Value*, std::vector<PathKey>> weights() const {
    for (const char* key : {"state_dict", "model"}) {
      const Value* below = root().find(key);
      if (below != nullptr && below->is_dict()) return {below, {key}};
    }
    return {&root(), {}};
  }

  /// Points `stored` at the value below `keys`; its shape there. Throws ConfigError.
  Shape point(StoredTensor& stored, std::vector<PathKey> keys) const {
    const Value* value = &root();
    for (const PathKey& key : keys) {
      value = native::value_below(*value, key);
      if (value == nullptr) throw ConfigError("has no " + text_of_path(keys));
    }
    TensorMeta meta;
    stored.file = path_;
    if (value->is_tensor()) {
      meta = reader_.tensors().at(static_cast<std::size_t>(value->as_tensor())).meta;
      stored.path = std::move(keys);
    } else {
      const std::int64_t number = value->at("tid").as_int();
      stored.file = native::xser_tensor_file(path_, number);
      stored.path.clear();
      meta = meta_of(number, stored.file);
    }
    stored.dtype = meta.dtype;
    return meta.shape;
  }
  /// The same, when the shape is the expected one; else a problem.
  void add(StoredTensor stored, const std::vector<PathKey>& keys, native::Manifest& manifest,
           Problems& problems) const {
    try {
      const Shape got = point(stored, keys);
      if (got != stored.shape)
        problems.add(name(), text_of_path(keys) + ": expected the shape " + text_of(stored.shape) +
                                 " by the configuration, got " + text_of(got));
      manifest.tensors.push_back(std::move(stored));
    } catch (const ConfigError& error) {
      problems.add(name(), error.what());
    }
  }

 private:
  static std::string text_of_path(const std::vector<PathKey>& keys) {
    std::string text;
    for (const PathKey& key : keys) {
      const auto* word = std::get_if<std::string>(&key);
      text += (text.empty() ? "" : "/") +
              (word != nullptr ? *word : std::to_string(std::get<std::int64_t>(key)));
    }
    return terminal_line(text);
  }

  [[nodiscard]] TensorMeta meta_of(std::int64_t number, const std::string& file) const {
    if (info_) {
      const Value* said = info_->root().find(number);
      if (said != nullptr)
        return {.dtype = said->at("dtype").as_dtype(), .shape = said->at("shape").as_ints()};
    }
    const TorchFileReader tensor(place_.storage->open(join_path(place_.path, file)));
    return tensor.tensors().at(static_cast<std::size_t>(tensor.root().as_tensor())).meta;
  }

  const Place& place_;
  std::string path_;
  TorchFileReader reader_;
  std::optional<TorchFileReader> info_;
};

/// Names of the weights of all ranks' files. Those of a copy are known from another rank.
struct FileNames {
  std::set<std::string> present, known;

  [[nodiscard]] std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const std::string& name : present) {
      // The last stage's copy of a tied embedding has a name that only it has.
      if (!known.contains(name) && !is_derived_name(name) &&
          !name.ends_with("word_embeddings.weight"))
        names.push_back(name);
    }
    return names;
  }
};

/// Where the weights are: a prefix of all names, below some keys.
class ModelNames {
 public:
  ModelNames(const RankFile& file, const FileJob& job, NxdFolder::Kind kind) {
    const auto [root, below] = file.weights();
    below_ = below;
    // NNM counts the layers of a stage from 0.
    if (kind == NxdFolder::Kind::kNnm) first_layer_ = first_layer(job);
    if (job.stored.empty() || !root->is_dict()) return;
    const std::string known = renumbered(std::get<std::string>(job.stored.front().path.front()));
    for (const auto& [key, value] : root->as_dict()) {
      if (!key.is_string() || !key.as_string().ends_with(known)) continue;
      const std::string prefix = key.as_string().substr(0, key.as_string().size() - known.size());
      if (prefix.empty() || prefix.ends_with('.')) prefix_ = prefix;
    }
  }
  /// Adds the weights that the file has, and those that the model has there.
  void add_names(const RankFile& file, const FileJob& job, FileNames& names) const {
    const Value* root = &file.root();
    for (const PathKey& key : below_) root = native::value_below(*root, key);
    for (const StoredTensor& stored : job.stored)
      names.known.insert(std::get<std::string>(path_of(stored).back()));
    if (!root->is_dict()) return;
    for (const auto& [key, value] : root->as_dict()) {
      if (key.is_string() && (value.is_tensor() || value.find("tid") != nullptr))
        names.present.insert(key.as_string());
    }
  }
  [[nodiscard]] std::vector<PathKey> path_of(const StoredTensor& stored) const {
    std::vector<PathKey> path = below_;
    path.emplace_back(prefix_ + renumbered(std::get<std::string>(stored.path.front())));
    return path;
  }

 private:
  static std::int64_t first_layer(const FileJob& job) {
    std::int64_t first = -1;
    for (const StoredTensor& stored : job.stored) {
      const std::int64_t layer = layer_of(std::get<std::string>(stored.path.front())).layer;
      if (layer >= 0) first = first < 0 ? layer : std::min(first, layer);
    }
    return std::max<std::int64_t>(0, first);
  }
  [[nodiscard]] std::string renumbered(const std::string& name) const {
    const LayerNumber number = layer_of(name);
    if (number.layer < 0 || first_layer_ == 0) return name;
    return name.substr(0, number.begin) + std::to_string(number.layer - first_layer_) +
           name.substr(number.end);
  }

  std::vector<PathKey> below_;
  std::string prefix_;
  std::int64_t first_layer_ = 0;
};

struct ParameterGroup {
  std::vector<std::int64_t> ids;
  std::vector<std::string> names;  ///< those of this program have them
};

std::vector<ParameterGroup> groups_of(const Value& root, const std::string& where) {
  std::vector<ParameterGroup> groups;
  try {
    for (const Value& group : root.at("param_groups").items()) {
      ParameterGroup& added = groups.emplace_back();
      added.ids = group.at("params").as_ints();
      const Value* names = group.find("param_names");
      if (names == nullptr) continue;
      for (const Value& name : names->items()) added.names.push_back(name.as_string());
    }
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": param_groups: " + error.what());
  }
  return groups;
}

/// NxD has two optimizers where experts are spread and ZeRO-1 is on, one of the dense weights and
/// one of the experts, each with all groups; its dict has both, the numbers of the experts after an
/// offset and in their groups without it.
void split_experts(const Value& state, const std::string& where, std::vector<ParameterGroup>& ours,
                   std::vector<ParameterGroup>& theirs) {
  const Value* first = state.find("ep_param_group_offset");
  if (first == nullptr) return;
  std::int64_t offset = 0, first_group = 0;
  try {
    first_group = first->as_int();
    offset = state.at("ep_base_state_offset").as_int();
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (static_cast<std::int64_t>(i) < first_group) continue;
    for (std::int64_t& id : theirs[i].ids) id += offset;
  }
  std::vector<ParameterGroup> split(2 * ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    for (std::size_t j = 0; j < ours[i].ids.size(); ++j) {
      const std::string& name = ours[i].names.at(j);
      ParameterGroup& group = split[i + (nxd::is_expert_weight(name) ? ours.size() : 0)];
      group.ids.push_back(ours[i].ids[j]);
      group.names.push_back(name);
    }
  }
  ours = std::move(split);
}

/// Our number of a parameter → theirs. Groups are the same; in each, torch numbers the parameters
/// in the order of the model.
std::map<std::int64_t, std::int64_t> ids_of(const RankFile& file, const Value& state,
                                            const FileJob& job) {
  auto ours = groups_of(job.root, file.name());
  auto theirs = groups_of(state, file.name());
  split_experts(state, file.name(), ours, theirs);
  std::map<std::int64_t, std::int64_t> ids;
  bool fits = ours.size() == theirs.size();
  for (std::size_t group = 0; fits && group < ours.size(); ++group) {
    fits = ours[group].ids.size() == theirs[group].ids.size();
    if (ours[group].names != theirs[group].names) std::ranges::sort(ours[group].ids);
    for (std::size_t i = 0; fits && i < ours[group].ids.size(); ++i)
      ids[ours[group].ids[i]] = theirs[group].ids[i];
  }
  if (!fits)
    throw ConfigError(file.name() +
                      ": param_groups: the optimizer of the configuration has other groups of "
                      "parameters; correct the configuration");
  return ids;
}

void add_model(const RankFile& file, const FileJob& job, NxdFolder::Kind kind,
               native::Manifest& manifest, FileNames& of_files, Problems& problems) {
  const ModelNames names(file, job, kind);
  for (const StoredTensor& stored : job.stored)
    file.add(stored, names.path_of(stored), manifest, problems);
  names.add_names(file, job, of_files);
}

/// Path of the optimizer's dict in its file.
std::vector<PathKey> state_path(const NxdFolder& folder) {
  if (folder.optimizer_key.empty()) return {};
  if (folder.optimizer_key == nxd::kLightningStates) return {folder.optimizer_key, std::int64_t{0}};
  return {folder.optimizer_key};
}

void add_optimizer(const RankFile& file, const FileJob& job, const NxdFolder& folder,
                   native::Manifest& manifest, Problems& problems) {
  const std::vector<PathKey> below = state_path(folder);
  const Value* state = &file.root();
  for (const PathKey& key : below) {
    state = native::value_below(*state, key);
    if (state == nullptr) throw ConfigError(file.name() + ": has no " + folder.optimizer_key);
  }
  const std::map<std::int64_t, std::int64_t> ids = ids_of(file, *state, job);
  const bool is_plain = state->find("base_state") == nullptr;
  for (const StoredTensor& stored : job.stored) {
    std::vector<PathKey> path = stored.path;
    const PathKey dict = path[0];
    // Masters and averages are saved on request only, and else begin with the weights.
    if (dict != PathKey("base_state") && native::value_below(*state, dict) == nullptr) continue;
    path[1] = ids.at(std::get<std::int64_t>(path[1]));
    // Without ZeRO-1: torch's own dict.
    if (is_plain && dict == PathKey("base_state")) path[0] = "state";
    path.insert(path.begin(), below.begin(), below.end());
    file.add(stored, path, manifest, problems);
  }
}

/// The section of a part of a whole state that lies in one box of the state; none: they do not
/// overlap.
std::optional<native::StoredPart> part_in(const native::StoredPart& part, const Box& box) {
  const Box common = intersection(part.local, box);
  if (common.elements() == 0) return std::nullopt;
  native::StoredPart cut = part;
  cut.local = common;
  for (std::size_t axis = 0; axis < common.offset.size(); ++axis) {
    cut.global_offset[axis] += common.offset[axis] - part.local.offset[axis];
    cut.local.offset[axis] -= box.offset[axis];
  }
  return cut;
}

/// States in a folder of DCP. `job`: of a rank of TP, PP and EP. Its boxes are tensors of the
/// folder or, where EP ranks share dense ones out, rows of them; the training may have cut others.
void add_states(const DcpReader& states, const std::string& address, const FileJob& job,
                native::Manifest& manifest, Problems& problems) {
  for (const native::ChunkJob& chunk : job.chunks) {
    if (!chunk.stored) continue;
    const auto found = states.metadata().tensors.find(chunk.key);
    if (found == states.metadata().tensors.end()) {
      // NxD saves neither masters nor averages so: they begin with the weights.
      if (chunk.key.starts_with("base_state."))
        problems.add(address, "has no " + terminal_line(chunk.key));
      continue;
    }
    const DcpTensor& tensor = found->second;
    if (tensor.meta.shape != chunk.meta.shape) {
      problems.add(address, terminal_line(chunk.key) + ": expected the shape " +
                                text_of(chunk.meta.shape) + " by the configuration, got " +
                                text_of(tensor.meta.shape));
      continue;
    }
    for (const DcpChunk& box : tensor.chunks) {
      StoredTensor stored{native::kStatesFolder + box.place.file,
                          {},
                          tensor.meta.dtype,
                          box.sizes,
                          {},
                          box.place.offset,
                          box.place.length};
      for (native::StoredPart part : chunk.stored->parts) {
        for (std::size_t axis = 0; axis < part.local.offset.size(); ++axis)
          part.local.offset[axis] += chunk.box.offsets[axis];
        if (auto cut = part_in(part, {box.offsets, box.sizes}))
          stored.parts.push_back(*std::move(cut));
      }
      if (!stored.parts.empty()) manifest.tensors.push_back(std::move(stored));
    }
  }
}

/// The configuration of the training that wrote the folder.
RunConfig saved_config(const RunConfig& config, const NxdFolder& folder) {
  RunConfig saved = config;
  saved.distributed_strategy.tensor_model_parallel_size = folder.tp;
  saved.distributed_strategy.pipeline_model_parallel_size = folder.pp;
  saved.distributed_strategy.expert_model_parallel_size = folder.ep;
  saved.distributed_strategy.context_parallel_size = 1;  // no file's name has its rank
  saved.distributed_strategy.token_shuffle_group_size = 1;
  if (folder.has_optimizer)
    saved.distributed_strategy.zero1 =
        !folder.states_by_ep &&
        (folder.dp > 1 || folder.states_in_dcp || config.distributed_strategy.zero1);
  saved.distributed_strategy.data_parallel_replicate_size = 1;  // one copy wrote the files
  saved.trainer.num_nodes = 1;
  saved.trainer.devices = folder.tp * folder.pp * folder.dp;
  saved.data.global_batch_size = std::max(1, saved.data.micro_batch_size) * folder.dp;
  return saved;
}

/// Rows of the word embedding, whose padding depends on TP and on who wrote it.
void take_vocabulary(const RankFile& file, const FileJob& job, NxdFolder::Kind kind,
                     RunConfig& saved) {
  const ModelNames names(file, job, kind);
  for (StoredTensor stored : job.stored) {
    if (stored.path.size() != 1 || !is_vocabulary_weight(std::get<std::string>(stored.path[0])))
      continue;
    const Shape got = file.point(stored, names.path_of(stored));
    constexpr std::int64_t kMostRows = std::int64_t{1} << 24;
    if (!got.empty() && got[0] > 0 && got[0] <= kMostRows)
      saved.model.vocab_size = static_cast<int>(got[0]) * saved.tp();
    return;
  }
}

/// NxDT has one class for all Megatron models; here one that is a Llama has the names of a Llama.
bool has_megatron_names(const Place& place, const NxdFolder& folder) {
  const RankFile file(place, folder.model_file(place, {}));
  const Value* root = file.weights().first;
  return root->is_dict() && std::ranges::any_of(root->as_dict(), [](const auto& item) {
           return item.first.is_string() &&
                  item.first.as_string().find("language_model.") != std::string::npos;
         });
}

/// True where experts are as NxD has them. Files of this program, which may be there without their
/// manifest, have rows.
bool stacks_experts(const Place& place, const NxdFolder& folder, const RunConfig& saved) {
  if (!saved.model.moe) return false;
  for (int pp = 0; pp < folder.pp; ++pp) {
    const RankFile file(place, folder.model_file(place, {.pp = pp}));
    const auto [root, above] = file.weights();
    if (!root->is_dict()) continue;
    for (const auto& [key, value] : root->as_dict()) {
      if (!key.is_string() || !nxd::is_expert_weight(key.as_string())) continue;
      std::vector<PathKey> path = above;
      path.emplace_back(key.as_string());
      StoredTensor stored;
      return file.point(stored, std::move(path)).size() != 2;
    }
  }
  return true;
}

/// The files that one rank has.
std::vector<FileJob> rank_jobs(const RunConfig& saved, int rank, std::int64_t step,
                               const NxdFolder& folder, NxdPart part, bool is_stacked) {
  const native::FileOptions options{.zero1_dcp = folder.states_in_dcp};
  return layout_jobs(saved, rank, step, [&](native::RankContent layout) {
    if (part == NxdPart::kTrained)
      layout.live = trained_part(layout.parameters, std::move(layout.live));
    if (is_stacked)
      layout.live = in_nxd_form(std::move(layout.live), layout.parameters, layout.place.place);
    std::vector<FileJob> jobs = native::model_jobs(layout.live, layout.place, options);
    if (folder.has_optimizer && part == NxdPart::kAll)
      std::ranges::move(
          native::optimizer_jobs(layout.live, layout.optimizer, /*lr=*/0, layout.place, options),
          std::back_inserter(jobs));
    return jobs;
  });
}

/// The files of all ranks.
native::Manifest manifest_of(const Place& place, const NxdFolder& folder, RunConfig saved,
                             NxdPart part, bool is_stacked) {
  native::Manifest manifest;
  const SavedPoint point = nxd::read_training(place, folder).point;
  manifest.step = point.step;
  manifest.consumed_samples = point.consumed_samples;
  manifest.layout = nxd::layout_of(folder);
  Problems problems;
  FileNames names;
  std::optional<DcpReader> states;
  const std::string states_folder = join_path(place.path, "optim");
  if (folder.states_in_dcp) states.emplace(place.storage, states_folder);
  for (int rank = 0; rank < saved.world_size(); ++rank) {
    const auto jobs_of = [&] {
      return rank_jobs(saved, rank, point.step, folder, part, is_stacked);
    };
    std::vector<FileJob> jobs = jobs_of();
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const bool is_model = jobs[i].path.starts_with("model/");
      if (!is_model && states) {
        add_states(*states, join_path(place.storage->address(), states_folder), jobs[i], manifest,
                   problems);
        continue;
      }
      const trainer::RankMesh mesh{saved.tp(), saved.pp(), saved.dp(), 1, saved.ep()};
      const nxd::NxdRank self{mesh.tp_rank(rank), mesh.pp_rank(rank), mesh.ep_rank(rank),
                              mesh.dp_rank(rank)};
      const RankFile file(
          place, is_model ? folder.model_file(place, self) : folder.optimizer_file(place, self));
      if (rank == 0 && is_model) {
        take_vocabulary(file, jobs[i], folder.kind, saved);
        jobs = jobs_of();
      }
      is_model ? add_model(file, jobs[i], folder.kind, manifest, names, problems)
               : add_optimizer(file, jobs[i], folder, manifest, problems);
    }
  }
  problems.throw_if_any();
  if (part != NxdPart::kTrained) judge_unused_weights(names.unused(), place.address(), saved);
  std::ranges::sort(manifest.tensors, {}, &StoredTensor::id);
  return manifest;
}

}  // namespace

NxdContent read_nxd(const Place& place, const RunConfig& config, NxdPart part) {
  const std::optional<NxdFolder> folder = nxd::find_nxd_folder(place);
  TRELLIS_CHECK(folder.has_value(), "a folder of NxD");
  RunConfig saved = saved_config(config, *folder);
  NxdContent content{.format = nxd::name(folder->kind)};
  const bool is_mixtral = saved.model.architecture == "mixtral" &&
                          saved.model.position_embedding == trainer::PositionEmbedding::kRope;
  content.is_renamed =
      (saved.model.architecture == "llama" || is_mixtral) && has_megatron_names(place, *folder);
  if (content.is_renamed) saved.model.architecture = "gpt";
  content.has_stacked_experts = stacks_experts(place, *folder, saved);
  content.manifest = manifest_of(place, *folder, saved, part, content.has_stacked_experts);
  content.attention = {config.model.num_attention_heads, config.model.num_kv_heads};
  return content;
}

std::unique_ptr<TensorSource> open_nxd(const Place& place, const RunConfig& config, NxdPart part) {
  const Place checked = native::with_checksums(place);
  return nxd_source(checked, read_nxd(checked, config, part));
}

std::unique_ptr<TensorSource> open_checkpoint(const std::string& address, const RunConfig& config) {
  const Place place = open_place(address);
  return nxd::is_nxd_folder(place) ? open_nxd(place, config) : open_checkpoint(address);
}

}  // namespace trellis::checkpoint
