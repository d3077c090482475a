#include "trainer/checkpoint/training/source_loader.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/plan/boxes.h"

namespace trellis::checkpoint {
namespace {

/// Large tensors are read in pieces, which several ranks share.
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

}  // namespace

SourceLoader::SourceLoader(std::unique_ptr<TensorSource> source, int world_size)
    : source_(std::move(source)) {
  std::vector<LoadItem> items;
  for (const TensorEntry& entry : source_->tensors()) {
    const std::int64_t width = element_bytes(entry.dtype);
    for_each_piece(entry.shape, kPieceBytes / width, [&](const Box& box) {
      index_[entry.key].push_back(
          {pieces_.size(), entry.shape, box.offset, {Shape(box.shape.size(), 0), box.shape}});
      items.push_back({entry.key + " " + text_of(box.offset), {entry.dtype, box.shape}});
      pieces_.push_back({&entry, box});
    });
  }
  shared_ = std::make_unique<SharedLoad>(std::move(items), world_size);
}

at::Tensor SourceLoader::read(const Piece& piece, at::Tensor content) const {
  if (!content.defined())
    content =
        at::empty(piece.box.shape, at::TensorOptions().dtype(scalar_type_of(piece.entry->dtype)));
  source_->read(*piece.entry, piece.box,
                {static_cast<std::byte*>(content.mutable_data_ptr()), content.nbytes()});
  return content;
}

void SourceLoader::load(runtime::RankContext& rank, const std::vector<LiveTensor>& wanted,
                        Readers readers) {
  const std::vector<LoadCopy> copies = plan_copies(
      wanted, index_, [this](std::size_t item) { return pieces_[item].entry->dtype; },
      source_->address());
  const auto read_item = [this](std::size_t item, const at::Tensor& place) {
    return read(pieces_[item], place);
  };
  shared_->load(rank, copies, {read_item}, readers);
}

}  // namespace trellis::checkpoint
