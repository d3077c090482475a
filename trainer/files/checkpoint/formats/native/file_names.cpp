#include "trainer/files/checkpoint/formats/native/file_names.h"

namespace trellis::checkpoint::native {
namespace {

std::string two_digits(int number) { return (number < 10 ? "0" : "") + std::to_string(number); }

std::string rank_file(const char* folder, int dp_rank, std::optional<int> ep_rank, int tp_rank,
                      int pp_rank) {
  return std::string(folder) + "/dp_rank_" + two_digits(dp_rank) +
         (ep_rank ? "_ep_rank_" + two_digits(*ep_rank) : "") + "_tp_rank_" + two_digits(tp_rank) +
         "_pp_rank_" + two_digits(pp_rank) + ".pt";
}

}  // namespace

std::string unfinished_marker(const std::string& tag) { return tag + "-unfinished"; }

std::string model_file(int tp_rank, int pp_rank, std::optional<int> ep_rank) {
  return rank_file("model", 0, ep_rank, tp_rank, pp_rank);
}

std::string optimizer_file(int dp_rank, int tp_rank, int pp_rank, std::optional<int> ep_rank) {
  return rank_file("optim", dp_rank, ep_rank, tp_rank, pp_rank);
}

std::string xser_tensor_file(const std::string& file, std::int64_t tensor) {
  return file + ".tensors/tensor_" + std::to_string(tensor) + ".pt";
}

std::string xser_info_file(const std::string& file) { return file + ".info.pt"; }

}  // namespace trellis::checkpoint::native
