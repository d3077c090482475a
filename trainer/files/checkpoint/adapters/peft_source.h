#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::adapters {

/// The adapters of a folder that PEFT saved, and what it trained as a whole, under native names:
/// "base_model.model." is left out, an embedding's A has a row per token.
class PeftSource final : public TensorSource {
 public:
  /// Throws ConfigError as SafetensorsReader, and for tensors that no LoRA adapter has.
  explicit PeftSource(const Place& place);
  /// True if the place looks like a folder that PEFT saved.
  [[nodiscard]] static bool is_at(const Place& place);

  [[nodiscard]] const std::string& address() const override { return file_.name(); }
  [[nodiscard]] const char* format() const override { return "peft"; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const override { return tensors_; }
  void read(const TensorEntry& tensor, const Box& box, std::span<std::byte> into) const override;

 private:
  struct Stored {
    const SafetensorsEntry* entry;
    bool transposed;
  };
  void add(const SafetensorsEntry& entry);
  SafetensorsReader file_;
  std::map<std::string, Stored> stored_;  ///< by native name
  std::vector<TensorEntry> tensors_;
};

}  // namespace trellis::checkpoint::adapters
