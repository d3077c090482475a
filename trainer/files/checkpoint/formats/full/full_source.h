#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

/// One file of torch.save with a dict of whole tensors: NxDT's "full state", `checkpoint.pt`.
namespace trellis::checkpoint::full {

inline constexpr const char* kFileName = "checkpoint.pt";

/// The file at `place`, or kFileName in that folder; "" when there is none.
[[nodiscard]] std::string file_at(const Place& place);

/// The note in such a file that we write: where the training was. "": it says nothing.
[[nodiscard]] std::string note_of(const SavedPoint& point);

class FullSource final : public TensorSource {
 public:
  /// Throws ConfigError as TorchFileReader, and when the file holds no dict of tensors. A state
  /// dict below the key `model` or `state_dict` is taken too.
  explicit FullSource(const Place& place);
  /// The state dict below `key` and no other; "": the file's own dict.
  FullSource(const Place& place, const std::string& key);

  [[nodiscard]] const std::string& address() const override { return reader_->name(); }
  [[nodiscard]] const char* format() const override { return "full"; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  [[nodiscard]] SavedPoint point() const override { return point_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

 private:
  FullSource(const Place& place, const std::string* key);
  std::unique_ptr<TorchFileReader> reader_;
  SavedPoint point_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::int64_t> numbers_;  ///< of the reader's tensors, by key
};

}  // namespace trellis::checkpoint::full
