#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/dtype.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"

namespace trellis::checkpoint {

/// A global tensor of a checkpoint, of any format and layout.
struct TensorEntry {
  std::string key;  ///< of the native format: "model.layers.0.self_attn.q_proj.weight"
  DType dtype = DType::kFloat32;
  Shape shape;  ///< global
  bool operator==(const TensorEntry&) const = default;
};

/// Where the training was that saved a checkpoint; 0, 0: the checkpoint says nothing of one.
struct SavedPoint {
  std::int64_t step = 0, consumed_samples = 0;
};

/// An opened checkpoint of any format: its global tensors under the keys of the native format.
/// Writers of formats pull from it in the order of their files, so a conversion needs the memory of
/// the boxes that it asks for, not of the model. All members are safe to call from several threads
/// at once.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// Where the checkpoint is, for error texts.
  [[nodiscard]] virtual const std::string& address() const = 0;
  /// "trellis", "hugging_face", "megatron", …
  [[nodiscard]] virtual const char* format() const = 0;
  /// The tensors by key, each once.
  [[nodiscard]] virtual const std::vector<TensorEntry>& tensors() const = 0;
  [[nodiscard]] virtual SavedPoint point() const { return {}; }
  /// The elements of `box` of a tensor, row-major, in its own type. REQUIRES: the entry is one of
  /// tensors(), the box lies in it, and `into` has its bytes. Throws ConfigError that names the
  /// file and the key when the bytes are missing or damaged.
  virtual void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const = 0;
  /// How much of a tensor to read at once.
  [[nodiscard]] virtual std::int64_t piece_bytes(const TensorEntry&) const {
    return std::int64_t{2} << 20;
  }

  /// From now on read() may return before the file's content is compared with what was saved: a
  /// thread does it meanwhile. For callers that call finish_checks() before their result is
  /// complete.
  virtual void check_in_background() {}
  /// Throws the error of a file that read() took bytes from.
  virtual void finish_checks() {}
};

}  // namespace trellis::checkpoint
