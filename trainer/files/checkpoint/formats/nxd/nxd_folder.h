#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/storage/place.h"

/// Folders that NxD, NxDT and NeMo Megatron for Neuron (NNM) wrote: a file per rank, and nothing
/// that says which part of which weight a tensor is. That follows from the configuration of the
/// training.
namespace trellis::checkpoint::nxd {

/// Lightning's list of the dicts of optimizers, of which there is one.
inline constexpr const char* kLightningStates = "optimizer_states";

/// Whose file it is.
struct NxdRank {
  int tp = 0, pp = 0, ep = 0, dp = 0;
};

/// Kind and sizes of a folder, and where its files are. Paths are relative to the folder.
///
///   kNxd     model/dp_rank_00_tp_rank_TT_pp_rank_PP.pt, optim/dp_rank_DD_… (NxDT too); with EP
///            model/dp_rank_00_ep_rank_EE_tp_rank_…, and optim/ alike without ZeRO-1
///   kLegacy  tp_rank_TT_pp_rank_PP/checkpoint.pt, or the file tp_rank_TT_pp_rank_PP (xser);
///            optim.dp_rank_DD.tp_rank_TT of ZeRO-1, else the states are next to the weights
///   kNnm     tp_rank_TT_pp_rank_PPP/model_optim_rng.ckpt, or mp_rank_TT/…
struct NxdFolder {
  enum class Kind { kNxd, kLegacy, kNnm };
  Kind kind = Kind::kNxd;
  int tp = 1, pp = 1;
  int ep = 1;                 ///< ranks with other experts: kNxd alone
  int dp = 1;                 ///< of the optimizer's files: without ZeRO-1 as many as EP
  bool states_by_ep = false;  ///< there are EP ranks, and no ZeRO-1
  bool has_optimizer = false;
  bool states_in_dcp = false;  ///< use_zero1_dcp: optim/ is a folder of DCP, whatever the DP degree
  /// Where a file has the optimizer's dict: "": it is all of the file.
  std::string optimizer_key;

  [[nodiscard]] std::string model_file(const Place& place, const NxdRank& rank) const;
  /// The same file where the states are next to the weights.
  [[nodiscard]] std::string optimizer_file(const Place& place, const NxdRank& rank) const;
  /// All files of weights, then those of states, where these are other files.
  [[nodiscard]] std::vector<std::string> files(const Place& place) const;
  bool operator==(const NxdFolder&) const = default;
};
/// Degrees, as Manifest::layout has them.
[[nodiscard]] std::map<std::string, std::int64_t> layout_of(const NxdFolder& folder);
/// "nxd", "nxd_legacy", "nnm"
[[nodiscard]] const char* name(NxdFolder::Kind kind);

/// None: the folder is none of them, or has our manifest. Throws ConfigError with every file that
/// is missing.
[[nodiscard]] std::optional<NxdFolder> find_nxd_folder(const Place& place);
/// True if the place looks like a folder of NxD, NxDT or NNM.
[[nodiscard]] bool is_nxd_folder(const Place& place);

/// Classes that files of these programs name next to tensors. They stay names: nothing is imported.
[[nodiscard]] const std::set<std::string>& known_classes();

/// Step and samples, of the folder's name: "a--step=5-consumed_samples=160.0.ckpt"; 0: it says
/// nothing.
struct NameNumbers {
  std::int64_t step = 0, consumed_samples = 0;
};
[[nodiscard]] NameNumbers numbers_of_name(const std::string& folder);

}  // namespace trellis::checkpoint::nxd
