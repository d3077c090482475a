#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_folder.h"
#include "trainer/files/checkpoint/formats/hugging_face/weight_map.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint::hugging_face {

/// A folder that transformers' save_pretrained wrote, or one of the hub, as native tensors.
class HuggingFaceSource final : public TensorSource {
 public:
  /// Throws ConfigError with every problem: config.json, files, tensors that are missing, have
  /// another shape, or are of another architecture.
  explicit HuggingFaceSource(const Place& place);

  [[nodiscard]] const std::string& address() const override { return folder_.address(); }
  [[nodiscard]] const char* format() const override { return "hugging_face"; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return entries_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

  [[nodiscard]] const HubConfig& config() const { return config_; }
  /// The content of config.json.
  [[nodiscard]] const std::string& config_text() const { return config_text_; }
  [[nodiscard]] const HubFolder& folder() const { return folder_; }
  [[nodiscard]] const WeightMap& map() const { return map_; }

 private:
  void check_tensors() const;
  void make_entries();

  HubFolder folder_;
  std::string config_text_;
  HubConfig config_;
  WeightMap map_;
  std::vector<TensorEntry> entries_;                           ///< by key
  std::map<std::string, std::vector<std::size_t>> pieces_of_;  ///< by key
};

}  // namespace trellis::checkpoint::hugging_face
