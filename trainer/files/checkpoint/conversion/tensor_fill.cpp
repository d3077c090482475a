#include "trainer/files/checkpoint/conversion/tensor_fill.h"

#include <algorithm>
#include <cstring>

#include "trainer/files/checkpoint/containers/convert.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {
namespace {

constexpr std::int64_t kLeastPieceBytes = std::int64_t{2} << 20;

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements * element_bytes(dtype));
}

}  // namespace

TensorIndex index_of(const TensorSource& source) {
  TensorIndex index;
  for (const TensorEntry& entry : source.tensors()) index.emplace(entry.key, &entry);
  return index;
}

const TensorEntry* TensorFill::entry_of(const ShardedPart& part, DType dtype) const {
  const std::string key =
      source_key(part.tensor.key, dtype, [&](const std::string& name) -> std::optional<DType> {
        const auto found = index_.find(name);
        return found == index_.end() ? std::nullopt : std::optional(found->second->dtype);
      });
  return key.empty() ? nullptr : index_.at(key);
}

std::string TensorFill::problem(const ShardedPart& part, DType dtype) const {
  const TensorEntry* entry = entry_of(part, dtype);
  const ShardedTensor& wanted = part.tensor;
  if (entry == nullptr) {
    return "has no " + wanted.key +
           (parse_state_key(wanted.key).state.empty()
                ? "; it is of another model"
                : "; it is of another optimizer, or of weights alone (--weights-only writes "
                  "those)");
  }
  const bool fits = wanted.allow_shape_mismatch ? wanted.global_shape.size() == entry->shape.size()
                                                : wanted.global_shape == entry->shape;
  if (!fits) {
    return entry->key + " has the shape " + text_of(entry->shape) + ", the layout expects " +
           text_of(wanted.global_shape) + "; correct the model's sizes";
  }
  if (!is_convertible(entry->dtype, dtype)) {
    return entry->key + " is " + name(entry->dtype) + ", which cannot be written as " + name(dtype);
  }
  return "";
}

void TensorFill::fill(const Box& piece, DType dtype, const ShardedPart& part) {
  Box common = intersection(part.local, piece);
  if (common.elements() == 0) return;
  const TensorEntry& entry = *entry_of(part, dtype);
  Box global{part.tensor.global_offset, common.shape};
  for (std::size_t axis = 0; axis < common.shape.size(); ++axis)
    global.offset[axis] += common.offset[axis] - part.local.offset[axis];
  // A vocabulary of another size: what both have.
  const Box shared = intersection(global, {Shape(entry.shape.size(), 0), entry.shape});
  if (shared.elements() == 0) return;
  Shape into(common.shape.size(), 0);
  for (std::size_t axis = 0; axis < common.shape.size(); ++axis)
    into[axis] =
        common.offset[axis] + shared.offset[axis] - global.offset[axis] - piece.offset[axis];
  if (shared.shape == piece.shape && entry.dtype == dtype)
    return source_.read(entry, shared, piece_);
  read_.resize(bytes_of(shared.elements(), entry.dtype));
  source_.read(entry, shared, read_);
  const std::vector<std::byte>* values = &read_;
  if (entry.dtype != dtype) {
    converted_.resize(bytes_of(shared.elements(), dtype));
    convert_elements(entry.dtype, read_, dtype, converted_);
    values = &converted_;
  }
  const std::int64_t width = element_bytes(dtype);
  for_each_run({shared.shape, Shape(into.size(), 0), piece.shape, into, shared.shape},
               [&](std::int64_t from, std::int64_t place, std::int64_t count) {
                 std::memcpy(piece_.data() + place * width, values->data() + from * width,
                             static_cast<std::size_t>(count * width));
               });
}

void TensorFill::write(const TensorMeta& meta, const std::vector<ShardedPart>& parts,
                       const WriteBytes& write) {
  std::int64_t bytes = kLeastPieceBytes;
  for (const ShardedPart& part : parts)
    bytes = std::max(bytes, source_.piece_bytes(*entry_of(part, meta.dtype)));
  for_each_piece(meta.shape, bytes / element_bytes(meta.dtype), [&](const Box& piece) {
    piece_.assign(bytes_of(piece.elements(), meta.dtype), std::byte{0});
    for (const ShardedPart& part : parts) fill(piece, meta.dtype, part);
    write(piece_);
  });
}

}  // namespace trellis::checkpoint
