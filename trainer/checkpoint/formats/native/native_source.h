#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/containers/torch_file.h"
#include "trainer/checkpoint/formats/native/manifest.h"
#include "trainer/checkpoint/formats/tensor_source.h"
#include "trainer/checkpoint/plan/read_plan.h"
#include "trainer/checkpoint/storage/place.h"

namespace trellis::checkpoint::native {

/// A checkpoint of `trellis train`, whatever its layout, as global tensors. Each file is compared
/// with the manifest before its content is used.
class NativeSource final : public TensorSource {
 public:
  /// Throws ConfigError as read_manifest, and for parts of one tensor that contradict each other.
  explicit NativeSource(Place place);
  ~NativeSource() override;

  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] const char* format() const override { return "trellis"; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// What else training needs.
  [[nodiscard]] Value user_content() const;

 private:
  class Files;

  Place place_;
  std::string address_;
  Manifest manifest_;
  SourceIndex index_;
  std::vector<TensorEntry> tensors_;
  std::unique_ptr<Files> files_;
};

}  // namespace trellis::checkpoint::native
