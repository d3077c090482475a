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

at::Tensor KvCache::room_for(const at::Tensor& prompt) const {
  std::vector<std::int64_t> sizes = prompt.sizes().vec();
  sizes[0] = capacity_;
  at::Tensor places = at::zeros(sizes, prompt.options());
  places.narrow(0, 0, prompt.size(0)).copy_(prompt);
  return places;
}

void KvCache::put(at::Tensor& places, const at::Tensor& of_pass) const {
  c10::List<std::optional<at::Tensor>> at_places;
  at_places.push_back(positions_.t());
  at_places.push_back(at::arange(places.size(1), positions_.options()).unsqueeze(0));
  at::index_put_(places, at_places, of_pass);
}

}  // namespace trellis::trainer
