#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint {

/// Fills a training of any layout from a checkpoint of any format. All ranks share one.
class SourceLoader {
 public:
  SourceLoader(std::unique_ptr<TensorSource> source, int world_size);
  [[nodiscard]] const TensorSource& source() const { return *source_; }
  /// Collective: each piece is read by one of the ranks that need it, or by each. Throws
  /// ConfigError with every tensor that is missing or has another shape.
  void load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
            Readers readers = Readers::kOne);

 private:
  struct Piece {
    const TensorEntry* entry;
    Box box;
  };
  [[nodiscard]] at::Tensor read(const Piece& piece, at::Tensor content) const;

  std::unique_ptr<TensorSource> source_;
  std::vector<Piece> pieces_;
  SourceIndex index_;
  std::unique_ptr<SharedLoad> shared_;
};

}  // namespace trellis::checkpoint
