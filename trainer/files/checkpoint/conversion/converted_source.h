#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint {

/// Tensors of a source in other types, and without rows that their shape leaves out.
class ConvertedSource final : public TensorSource {
 public:
  struct Tensor {
    TensorEntry as;    ///< what is read here
    TensorEntry from;  ///< one of the source's tensors()
  };
  /// The source must outlive it.
  ConvertedSource(const TensorSource& source, const std::vector<Tensor>& tensors);

  [[nodiscard]] const std::string& address() const override { return source_.address(); }
  [[nodiscard]] const char* format() const override { return source_.format(); }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return entries_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

 private:
  const TensorSource& source_;
  std::map<std::string, TensorEntry> from_;  ///< by key
  std::vector<TensorEntry> entries_;         ///< by key
};

}  // namespace trellis::checkpoint
