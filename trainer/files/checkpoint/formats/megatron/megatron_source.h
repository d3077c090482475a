#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/formats/megatron/name_map.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

/// Folders of megatron.core.dist_checkpointing with the backend torch_dist: `.metadata`,
/// `__r_n.distcp`, `common.pt`, and `metadata.json`, which is written last.
namespace trellis::checkpoint::megatron {

inline constexpr const char* kMetadataFile = "metadata.json";
inline constexpr const char* kCommonFile = "common.pt";
/// Next to folders of iterations: names the newest one.
inline constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";
/// "iter_0000005"
[[nodiscard]] std::string iteration_folder(std::int64_t step);

/// True if there is a folder of this format, or of one that it replaced (zarr, mp_rank_00, .nemo).
[[nodiscard]] bool is_at(const Place& place);

/// Weights under the native names, and optimizer states of the reshardable form, "optimizer.state.
/// exp_avg.<key>". Tensors that the native names do not know keep theirs.
class MegatronSource final : public TensorSource {
 public:
  /// `attention`: in place of the arguments in common.pt. Throws ConfigError: zarr, .nemo and
  /// folders of ranks, which are not read; an incomplete folder; damage; heads that are not known.
  explicit MegatronSource(const Place& folder, const AttentionSizes& attention = {});
  ~MegatronSource() override;

  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] const char* format() const override { return "megatron"; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

  [[nodiscard]] SavedPoint point() const override;

  /// The content of common.pt; None when there is none.
  [[nodiscard]] const Value& common() const { return common_; }

 private:
  /// Rows of a tensor of the folder that are rows of a native one.
  struct Piece {
    std::string tensor;
    Shape lead = {};  ///< indices of the first axes, which the native tensor does not have
    std::int64_t first = 0, native_first = 0, rows = 0;
  };
  void read_common(const Place& place);
  void add_state(const std::string& state, const std::string& prefix);
  void add_piece(const std::string& state, const MegatronWeight& weight, const RowBlock& block,
                 const Piece& piece, DType dtype);
  void read_chunks(const Piece& piece, Box wanted, const Box& box, DType dtype,
                   std::span<std::byte> into) const;

  std::string address_;
  std::unique_ptr<DcpReader> reader_;
  Value common_;
  AttentionSizes attention_;
  std::map<std::string, TensorEntry> entries_;  ///< while they are collected
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::vector<Piece>> pieces_;  ///< by key
};

}  // namespace trellis::checkpoint::megatron
