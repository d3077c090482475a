#include "trainer/modules/kv_cache.h"

#include <optional>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/zeros.h>

namespace trellis::trainer {

void KvCache::begin(at::Tensor positions) {
  positions_ = std::move(positions);
  ++passes_;
}

KvCache::Keys KvCache::add(int layer, const at::Tensor& key, const at::Tensor& value) {
  if (is_prompt()) {
    layers_[layer] = {room_for(key), room_for(value)};
    return {key, value};
  }
  Keys& keys = layers_.at(layer);
  put(keys.key, key);
  put(keys.value, value);
  return keys;
}

std::int64_t KvCache::num_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [layer, keys] : layers_) bytes += keys.key.nbytes() + keys.value.nbytes();
  return static_cast<std::int64_t>(bytes);
}

at::Tensor KvCache::room_for(const at::Tensor& prompt) const {
  std::vector<std::int64_t> sizes = prompt.sizes().vec();
  sizes[0] = capacity_;
  at::Tensor places = at::zeros(sizes, prompt.options());
  places.narrow(0, 0, prompt.size(0)).copy_(prompt);
  return places;
}

/// One index for place and row: what a device writes as whole rows.
void KvCache::put(at::Tensor& places, const at::Tensor& of_pass) const {
  const std::int64_t rows = places.size(1);
  const at::Tensor at_rows =
      (positions_.t() * rows + at::arange(rows, positions_.options())).flatten();
  at::Tensor flat = places.view({capacity_ * rows, -1});
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(at_rows);
  at::index_put_(flat, indices, of_pass.reshape({at_rows.size(0), -1}));
}

}  // namespace trellis::trainer
