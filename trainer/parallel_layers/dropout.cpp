#include "trainer/parallel_layers/dropout.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/util/StringUtil.h>

#include "base/content_hash.h"
#include "base/error.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

/// A sharded dimension is drawn in so many pieces, each from its own stream, so that a rank draws
/// only its own: up to this TP no number is drawn twice. One rank issues as many small operations.
constexpr std::int64_t kChunks = 32;

/// The largest number of equal pieces up to kChunks. It depends on the un-sharded size only.
std::int64_t chunk_count(std::int64_t total) {
  std::int64_t count = std::min(kChunks, total);
  while (total % count != 0) --count;
  return count;
}

class DropoutBackward final : public Derivative {
 public:
  DropoutBackward(const at::Tensor& mask, double scale) : scale_(scale) { save(mask); }

 private:
  Tensors backward(Tensors grads) override { return {at::mul(grads[0], saved(0)).mul_(scale_)}; }
  double scale_;
};

}  // namespace

at::Generator generator_on(at::Device device, std::uint64_t seed) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

ShardPlace ShardPlace::part(int dim, std::int64_t size, const ParallelGroup& tp) {
  return {dim, size * tp.size, {{tp.rank * size, size}}};
}

Dropout::Dropout(const ModuleContext& context, const std::string& path, double probability)
    : path_(path),
      probability_(probability),
      seed_(context.seed),
      device_(context.device),
      tp_(context.tp()),
      sequence_parallel_(context.sequence_parallel),
      sequence_(context.sequence(0)),
      position_(context.position) {
  if (!(probability >= 0 && probability <= 1)) {
    throw ConfigError(
        c10::str(path, ": the dropout probability must be in 0 … 1, got ", probability));
  }
}

at::Tensor Dropout::forward(const at::Tensor& input) const {
  return forward(input, sequence_parallel_ ? ShardPlace::part(0, input.size(0), tp_)
                                           : ShardPlace{0, input.size(0), {{0, input.size(0)}}});
}

at::Tensor Dropout::forward(const at::Tensor& input, const ShardPlace& place) const {
  if (probability_ == 0 || !position_->training) return input;
  const double scale = probability_ < 1 ? 1 / (1 - probability_) : 0;
  at::Tensor output, mask;
  {
    BelowAutograd below;
    mask = keep_mask(input.sizes(), place, input.scalar_type());
    output = at::mul(input, mask).mul_(scale);
  }
  if (needs_derivative({input}))
    attach(c10::make_intrusive<DropoutBackward>(mask, scale), {input}, {output});
  return output;
}

at::Tensor Dropout::draw_chunk(std::vector<std::int64_t> sizes, std::int64_t chunk,
                               at::ScalarType dtype) const {
  ContentHasher hasher;
  hasher.value(seed_);
  hasher.value(position_->step);
  hasher.value(position_->microbatch);
  hasher.value(chunk);
  hasher.text(path_);
  const at::Tensor mask = at::empty(sizes, at::TensorOptions().dtype(dtype).device(device_));
  return mask.bernoulli_(1 - probability_, generator_on(device_, hasher.finish().low));
}

ShardPlace Dropout::in_sequence(const ShardPlace& place) const {
  SequenceShard sequence = sequence_;
  sequence.length = place.total * sequence.size;
  ShardPlace whole{0, sequence.length, {}};
  for (const RowRange& wanted : place.rows) {
    std::int64_t local = 0;  // where a range of the whole sequence begins in this rank's part
    for (const RowRange& range : sequence.rows(sequence.rank)) {
      const std::int64_t first = std::max(wanted.first, local),
                         end = std::min(wanted.end(), local + range.count);
      if (first < end) whole.rows.push_back({range.first + first - local, end - first});
      local += range.count;
    }
  }
  return whole;
}

at::Tensor Dropout::keep_mask(at::IntArrayRef sizes, const ShardPlace& place,
                              at::ScalarType dtype) const {
  if (sequence_.size == 1) return draw_mask(sizes.vec(), place, dtype);
  if (place.dim == 0) return draw_mask(sizes.vec(), in_sequence(place), dtype);
  // Cut along two dimensions: the whole sequence is drawn.
  SequenceShard sequence = sequence_;
  sequence.length = sizes[0] * sequence.size;
  std::vector<std::int64_t> whole = sizes.vec();
  whole[0] = sequence.length;
  return sequence.take(draw_mask(std::move(whole), place, dtype), 0);
}

/// Draws the chunks that the place touches, whole, and keeps what lies in it.
at::Tensor Dropout::draw_mask(std::vector<std::int64_t> sizes, const ShardPlace& place,
                              at::ScalarType dtype) const {
  if (place.dim < 0) return draw_chunk(std::move(sizes), 0, dtype);
  const std::int64_t rows = place.total / chunk_count(place.total);
  std::vector<std::int64_t> chunk_sizes = std::move(sizes);
  chunk_sizes[static_cast<std::size_t>(place.dim)] = rows;
  std::vector<at::Tensor> parts;
  for (const RowRange& range : place.rows) {
    const std::int64_t end = range.first + range.count;
    for (std::int64_t chunk = range.first / rows; chunk * rows < end; ++chunk) {
      const std::int64_t first = std::max(range.first, chunk * rows),
                         last = std::min(end, (chunk + 1) * rows);
      parts.push_back(draw_chunk(chunk_sizes, chunk, dtype)
                          .narrow(place.dim, first - chunk * rows, last - first));
    }
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, place.dim);
}

}  // namespace trellis::trainer
