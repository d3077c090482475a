#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/containers/safetensors.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::hugging_face {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kGenerationConfigFile = "generation_config.json";
inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndexFile = "model.safetensors.index.json";

/// The weights of a folder under their names, whichever files hold them. Opening reads headers
/// only; a pickle is read without running anything. All members are safe to call from several
/// threads at once.
class HubFolder {
 public:
  struct Tensor {
    TensorMeta meta;
    std::string file;
    bool is_torch = false;
    std::size_t reader = 0;  ///< of the file, among those of its kind
    std::int64_t place = 0;  ///< among the file's tensors
  };

  /// Takes model.safetensors.index.json, model.safetensors, pytorch_model.bin.index.json or
  /// pytorch_model.bin, the first that is there. Throws ConfigError with every problem: none of
  /// them, a file of the index that is missing or does not hold what the index says, a damaged
  /// file.
  explicit HubFolder(Place place);

  [[nodiscard]] const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// The elements of `box`, row-major, in the file's type. REQUIRES: the box lies in the tensor.
  void read(const Tensor& tensor, const Box& box, std::span<std::byte> into) const;
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const Place& place() const { return place_; }
  /// Address of a file, for error texts.
  [[nodiscard]] std::string address_of(const std::string& file) const;

 private:
  void open_index(const std::string& path);
  void open_file(const std::string& file);
  void open_safetensors(const std::string& file);
  void open_torch(const std::string& file);
  /// The first file that holds a name counts; `weight_map` says which one it must be.
  void add(const std::string& name, Tensor tensor);

  Place place_;
  std::string address_;
  std::map<std::string, std::string> weight_map_;  ///< of an index; else empty
  std::vector<std::unique_ptr<SafetensorsReader>> safetensors_;
  std::vector<std::unique_ptr<TorchFileReader>> torch_files_;
  std::map<std::string, Tensor> tensors_;
  mutable std::atomic<bool> is_read_ = false;  ///< of a file without checksums
};

/// True if the folder looks like one of Hugging Face: it has a config.json and one of the files of
/// weights.
[[nodiscard]] bool is_hub_folder(const Place& place);

}  // namespace trellis::checkpoint::hugging_face
