#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/background_checks.h"
#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/formats/native/open_files.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/plan/read_plan.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::native {

/// A checkpoint of `trellis train`, whatever its layout, as global tensors. Each file is compared
/// with the manifest before its content is used.
class NativeSource final : public TensorSource {
 public:
  /// Throws ConfigError as read_manifest, and for parts of one tensor that contradict each other.
  explicit NativeSource(Place place);
  /// Files that another program wrote, which are not hashed: the manifest says what is in them.
  /// `classes` as TorchFileReader has it.
  NativeSource(Place place, Manifest manifest, const char* format, std::set<std::string> classes);

  [[nodiscard]] const std::string& address() const override { return address_; }
  [[nodiscard]] const char* format() const override { return format_; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

  void check_in_background() override;
  void finish_checks() override;

  [[nodiscard]] SavedPoint point() const override {
    return {manifest_.step, manifest_.consumed_samples};
  }

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  /// True if a training of this program saved the checkpoint.
  [[nodiscard]] bool is_ours() const { return !manifest_.files.empty(); }
  /// State of the training in addition to its tensors (user_content.pt). REQUIRES: is_ours().
  [[nodiscard]] Value user_content() const;

 private:
  void make_index();
  /// Throws ConfigError when it is not what was saved.
  void check_content(const std::string& path) const;

  Place place_;
  std::string address_;
  const char* format_;
  Manifest manifest_;
  SourceIndex index_;
  std::vector<TensorEntry> tensors_;
  std::unique_ptr<BackgroundChecks> checks_;  ///< none: a file is checked before its first use
  mutable OpenFiles files_;
};

}  // namespace trellis::checkpoint::native
