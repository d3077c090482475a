#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// NxD's folder of one checkpoint, below the folder of all of them:
///
///   <tag>/checkpoint       "1", written first: this is a checkpoint's folder
///   <tag>/model/…          weights by tensor- and pipeline-parallel rank
///   <tag>/optim/…          optimizer states, with ZeRO-1 also by data-parallel rank
///   <tag>/user_content.pt  what else training needs
///   <tag>/manifest.json    ours: hash of each file, and which part of which weight each tensor is
///   <tag>/done             "1", written last: the checkpoint is complete
namespace trellis::checkpoint::native {

inline constexpr const char* kBeginFile = "checkpoint";
inline constexpr const char* kDoneFile = "done";
inline constexpr const char* kSchedulerFile = "scheduler.pt";
inline constexpr const char* kUserContentFile = "user_content.pt";
inline constexpr const char* kManifestFile = "manifest.json";
/// Before the names of files with states of the optimizer.
inline constexpr const char* kStatesFolder = "optim/";

/// Name of the marker, in the folder of the tag, of a save that is under way.
[[nodiscard]] std::string unfinished_marker(const std::string& tag);
/// "model/dp_rank_00_tp_rank_01_pp_rank_03.pt"; with expert parallelism
/// "model/dp_rank_00_ep_rank_01_tp_rank_01_pp_rank_03.pt"
[[nodiscard]] std::string model_file(int tp_rank, int pp_rank, std::optional<int> ep_rank = {});
/// "optim/dp_rank_02_tp_rank_01_pp_rank_03.pt"; without ZeRO-1 all ranks of DP have that of rank 0,
/// with an ep_rank where there is expert parallelism.
[[nodiscard]] std::string optimizer_file(int dp_rank, int tp_rank, int pp_rank,
                                         std::optional<int> ep_rank = {});
/// With xser: the file of one tensor of `file`, and the file that describes all of them.
[[nodiscard]] std::string xser_tensor_file(const std::string& file, std::int64_t tensor);
[[nodiscard]] std::string xser_info_file(const std::string& file);

}  // namespace trellis::checkpoint::native
