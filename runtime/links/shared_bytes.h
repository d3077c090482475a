#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace trellis::runtime {

/// Bytes in memory that other processes of this host can map: a file without a name, which ends
/// with its last holder, however that ends.
class SharedBytes {
 public:
  /// The pieces one after the other. Nullptr: the system gives no memory for them.
  [[nodiscard]] static std::unique_ptr<SharedBytes> copy_of(
      const std::vector<std::pair<const std::byte*, std::size_t>>& pieces);
  ~SharedBytes();
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// The first `size` bytes of such a file of another process, uint8 [size]; what is written to
  /// them is seen by no one else. Takes `descriptor`. Throws Error when they cannot be mapped.
  [[nodiscard]] static at::Tensor map(int descriptor, std::size_t size);

 private:
  explicit SharedBytes(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace trellis::runtime
