#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

/// Keys and values of the tokens that decoding has seen, of all layers of a rank's stages. Each row
/// lies at the left of `capacity` places, whatever its length: after the prompts every pass has the
/// same shapes, so that a device compiles one graph for all tokens.
class KvCache {
 public:
  explicit KvCache(std::int64_t capacity) : capacity_(capacity) {}

  /// The next pass is of tokens at `positions`, [b, s] int64. The first pass reads the prompts from
  /// position 0 on; what only fills up a short one is overwritten by the tokens that follow it.
  void begin(at::Tensor positions);
  [[nodiscard]] const at::Tensor& positions() const { return positions_; }
  /// True in the first pass, whose tokens attend to each other only.
  [[nodiscard]] bool is_prompt() const { return passes_ == 1; }
  /// Places that this pass attends to: those of the prompts, later `capacity`.
  [[nodiscard]] std::int64_t num_keys() const {
    return is_prompt() ? positions_.size(1) : capacity_;
  }

  struct Keys {
    at::Tensor key, value;  ///< [num_keys, b, n_kv/TP, d]
  };
  /// Keeps a layer's keys and values of this pass, [s, b, n_kv/TP, d]; returns those to attend to.
  /// `layer`: its index in the whole model.
  Keys add(int layer, const at::Tensor& key, const at::Tensor& value);
  /// Tokens per row that there is room for.
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  /// Bytes of the keys and values of all layers.
  [[nodiscard]] std::int64_t num_bytes() const;

 private:
  [[nodiscard]] at::Tensor room_for(const at::Tensor& prompt) const;
  void put(at::Tensor& places, const at::Tensor& of_pass) const;

  std::int64_t capacity_;
  std::int64_t passes_ = 0;
  at::Tensor positions_;
  std::map<int, Keys> layers_;
};

}  // namespace trellis::trainer
