#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::nxd {
namespace {

constexpr const char* kNnmFile = "model_optim_rng.ckpt";
/// No cluster has more.
constexpr int kMostRanks = 99'999;

std::string legacy_path(int tp_rank, int pp_rank) {
  return fmt::format("tp_rank_{:02}_pp_rank_{:02}", tp_rank, pp_rank);
}

std::string nnm_path(const Place& place, int tp_rank, int pp_rank) {
  const std::string alone = fmt::format("mp_rank_{:02}/{}", tp_rank, kNnmFile);
  if (pp_rank == 0 && place.has(alone)) return alone;
  return fmt::format("tp_rank_{:02}_pp_rank_{:03}/{}", tp_rank, pp_rank, kNnmFile);
}

/// Last parts of the paths in a folder of the checkpoint.
std::vector<std::string> names_in(const Place& place, const std::string& folder) {
  std::vector<std::string> names;
  const std::string path = join_path(place.path, folder);
  for (const Entry& entry : place.storage->list(path, /*recursive=*/false)) {
    const std::size_t slash = entry.path.rfind('/');
    names.push_back(slash == std::string::npos ? entry.path : entry.path.substr(slash + 1));
  }
  return names;
}

/// One more than the largest number of each group of the pattern; 0: no name matches.
std::vector<int> counts(const std::vector<std::string>& names, const std::regex& pattern,
                        std::size_t groups) {
  std::vector<int> most(groups, 0);
  for (const std::string& name : names) {
    std::smatch match;
    if (name.size() > 80 || !std::regex_match(name, match, pattern)) continue;
    for (std::size_t i = 0; i < groups; ++i) {
      if (match[i + 1].matched && match[i + 1].length() <= 5)
        most[i] = std::max(most[i], std::stoi(match[i + 1]) + 1);
    }
  }
  return most;
}

/// Which states there are, and of how many ranks.
void take_optimizer(const Place& place, NxdFolder& folder) {
  static const std::regex pattern(
      R"(dp_rank_(\d+)(?:_ep_rank_(\d+))?_tp_rank_\d+_pp_rank_\d+\.pt)");
  const std::vector<int> copies = counts(names_in(place, "optim"), pattern, 2);
  folder.states_in_dcp = place.has("optim/.metadata");
  folder.has_optimizer = copies[0] > 0 || folder.states_in_dcp;
  if (copies[1] == 0) {
    folder.dp = std::max(1, copies[0]);
    if (!folder.states_in_dcp && folder.has_optimizer && folder.dp % folder.ep != 0)
      throw ConfigError(fmt::format(
          "{}/optim: has files of {} data-parallel ranks: expected a multiple of the {} "
          "expert-parallel ranks of {}/model; copy the whole folder again",
          place.address(), folder.dp, folder.ep, place.address()));
    return;
  }
  folder.states_by_ep = true;
  if (copies[1] >= folder.ep) return;
  folder.has_optimizer = false;
  log_warning(
      fmt::format("{}/optim: has the states of {} of {} expert-parallel ranks, as NxD saves them "
                  "without ZeRO-1 and without save_xser: they are not read; begin with the weights "
                  "(--init-from)",
                  place.address(), copies[1], folder.ep));
}

NxdFolder nxd_folder(const Place& place) {
  static const std::regex pattern(
      R"(dp_rank_00(?:_ep_rank_(\d+))?_tp_rank_(\d+)_pp_rank_(\d+)\.pt)");
  const std::vector<int> ranks = counts(names_in(place, "model"), pattern, 3);
  NxdFolder folder;
  folder.ep = std::max(1, ranks[0]);
  folder.tp = ranks[1];
  folder.pp = ranks[2];
  if (place.has("optim")) take_optimizer(place, folder);
  // Experts lie on the data-parallel ranks of a copy.
  folder.dp = std::max(folder.dp, folder.ep);
  return folder;
}

NxdFolder ranks_of(NxdFolder::Kind kind, const Place& place) {
  static const std::regex pattern(R"((?:tp|mp)_rank_(\d+)(?:_pp_rank_(\d+))?)"),
      optimizer(R"(optim\.dp_rank_(\d+)\.tp_rank_\d+)");
  const std::vector<std::string> names = names_in(place, "");
  const std::vector<int> ranks = counts(names, pattern, 2);
  NxdFolder folder{.kind = kind, .tp = ranks[0], .pp = std::max(1, ranks[1])};
  const int copies = kind == NxdFolder::Kind::kLegacy ? counts(names, optimizer, 1)[0] : 0;
  if (copies > 0 && folder.pp > 1) {
    log_warning(place.address() +
                ": NxD gives optim.dp_rank_DD.tp_rank_TT of all pipeline ranks one name, so that "
                "each file has the states of the one that wrote last: they are not read; begin "
                "with the weights (--init-from), or save with nxd.save_checkpoint there");
  } else if (copies > 0) {
    folder.has_optimizer = true;
    folder.dp = copies;
  }
  return folder;
}

void check_files(const Place& place, const NxdFolder& folder) {
  Problems problems;
  if (std::int64_t{folder.tp} * folder.pp * folder.dp > kMostRanks)
    throw ConfigError(place.address() + ": files of more than " + std::to_string(kMostRanks) +
                      " ranks");
  for (const std::string& file : folder.files(place)) {
    if (!place.has(file)) problems.add(join_path(place.address(), file), "is missing");
  }
  problems.throw_if_any();
}

/// Where the file of the first rank has the optimizer's dict next to the weights; "": nowhere.
std::string states_key(const Place& place, const NxdFolder& folder) {
  const std::string path = folder.model_file(place, {});
  const TorchFileReader file(place.storage->open(join_path(place.path, path)), known_classes());
  const Value* states = file.root().find(kLightningStates);
  if (states != nullptr && states->is(Value::Kind::kList) && !states->items().empty() &&
      states->items().front().is_dict())
    return kLightningStates;
  for (const char* key : {"optimizer", "optimizer_state_dict"}) {
    const Value* state = file.root().find(key);
    if (state != nullptr && state->is_dict() && state->find("param_groups") != nullptr) return key;
  }
  return "";
}

/// None: of another format.
std::optional<NxdFolder::Kind> kind_of(const Place& place) {
  // Our saves have a manifest, and one that was interrupted has no `done`.
  if (place.has(native::kManifestFile)) return std::nullopt;
  if (place.has(native::model_file(0, 0)) || place.has(native::model_file(0, 0, 0))) {
    const bool complete = place.has(native::kDoneFile) || !place.has(native::kBeginFile);
    return complete ? std::optional(NxdFolder::Kind::kNxd) : std::nullopt;
  }
  if (place.has(nnm_path(place, 0, 0))) return NxdFolder::Kind::kNnm;
  if (place.has(legacy_path(0, 0))) return NxdFolder::Kind::kLegacy;
  return std::nullopt;
}

}  // namespace

std::map<std::string, std::int64_t> layout_of(const NxdFolder& folder) {
  std::map<std::string, std::int64_t> layout{
      {"tp", folder.tp}, {"pp", folder.pp}, {"dp", folder.dp}};
  if (folder.ep > 1) layout["ep"] = folder.ep;
  return layout;
}

const char* name(NxdFolder::Kind kind) {
  switch (kind) {
    case NxdFolder::Kind::kNxd: return "nxd";
    case NxdFolder::Kind::kLegacy: return "nxd_legacy";
    case NxdFolder::Kind::kNnm: break;
  }
  return "nnm";
}

std::string NxdFolder::model_file(const Place& place, const NxdRank& rank) const {
  const auto ep_rank = ep > 1 ? std::optional(rank.ep) : std::nullopt;
  switch (kind) {
    case Kind::kNxd: return native::model_file(rank.tp, rank.pp, ep_rank);
    case Kind::kNnm: return nnm_path(place, rank.tp, rank.pp);
    case Kind::kLegacy: break;
  }
  const std::string path = legacy_path(rank.tp, rank.pp);
  return place.has(path + "/checkpoint.pt") ? path + "/checkpoint.pt" : path;
}

std::string NxdFolder::optimizer_file(const Place& place, const NxdRank& rank) const {
  if (!optimizer_key.empty()) return model_file(place, rank);
  if (kind != Kind::kNxd) return fmt::format("optim.dp_rank_{:02}.tp_rank_{:02}", rank.dp, rank.tp);
  return states_by_ep ? native::optimizer_file(0, rank.tp, rank.pp, rank.ep)
                      : native::optimizer_file(rank.dp, rank.tp, rank.pp);
}

std::vector<std::string> NxdFolder::files(const Place& place) const {
  std::vector<std::string> models, states;
  const bool has_states = has_optimizer && optimizer_key.empty() && !states_in_dcp;
  for (int pp_rank = 0; pp_rank < pp; ++pp_rank) {
    for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
      for (int ep_rank = 0; ep_rank < ep; ++ep_rank)
        models.push_back(model_file(place, {tp_rank, pp_rank, ep_rank}));
      const int copies = states_by_ep ? ep : dp;
      for (int copy = 0; has_states && copy < copies; ++copy)
        states.push_back(optimizer_file(place, {tp_rank, pp_rank, copy % ep, copy}));
    }
  }
  models.insert(models.end(), states.begin(), states.end());
  return models;
}

bool is_nxd_folder(const Place& place) { return kind_of(place).has_value(); }

std::optional<NxdFolder> find_nxd_folder(const Place& place) {
  const std::optional<NxdFolder::Kind> kind = kind_of(place);
  if (!kind) return std::nullopt;
  NxdFolder folder = *kind == NxdFolder::Kind::kNxd ? nxd_folder(place) : ranks_of(*kind, place);
  check_files(place, folder);
  if (*kind != NxdFolder::Kind::kNxd && !folder.has_optimizer) {
    folder.optimizer_key = states_key(place, folder);
    folder.has_optimizer = !folder.optimizer_key.empty();
  }
  return folder;
}

const std::set<std::string>& known_classes() {
  static const std::set<std::string> classes{
      "torch_xla.utils.serialization.TensorReference",
      "argparse.Namespace",
      "omegaconf.dictconfig.DictConfig",
      "omegaconf.listconfig.ListConfig",
      "omegaconf.base.ContainerMetadata",
      "omegaconf.base.Metadata",
      "omegaconf.nodes.AnyNode",
      "omegaconf.nodes.ValueNode",
      "pytorch_lightning.utilities.parsing.AttributeDict",
      "lightning_fabric.utilities.data.AttributeDict",
      "typing.Any",
  };
  return classes;
}

NameNumbers numbers_of_name(const std::string& folder) {
  const auto number = [&](const char* key) -> std::int64_t {
    const std::size_t at = folder.rfind(key);
    if (at == std::string::npos) return 0;
    const double value = std::strtod(folder.c_str() + at + std::string_view(key).size(), nullptr);
    return std::isfinite(value) && value >= 0 && value < 1e15 ? static_cast<std::int64_t>(value)
                                                              : 0;
  };
  return {number("step="), number("consumed_samples=")};
}

}  // namespace trellis::checkpoint::nxd
