#pragma once

#include <map>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::native {

/// A .pt file of one rank, with the files of its tensors where it has them (xser).
class RankStateFile {
 public:
  /// `path`: relative to the place. `classes` as TorchFileReader has it, in addition to xser's
  /// references. Throws ConfigError.
  RankStateFile(Place place, std::string path, std::set<std::string> classes = {});

  [[nodiscard]] const std::string& name() const { return reader_.name(); }
  [[nodiscard]] const Value& root() const { return reader_.root(); }
  /// True if `value`, a part of root(), represents a tensor.
  [[nodiscard]] static bool is_tensor(const Value& value);
  /// Its content, on the CPU. Throws ConfigError.
  [[nodiscard]] at::Tensor tensor(const Value& value) const;
  /// The tensors of a dict, by name; other values are left out.
  [[nodiscard]] std::map<std::string, at::Tensor> tensors(const Value& dict) const;

 private:
  Place place_;
  std::string path_;
  TorchFileReader reader_;
};

}  // namespace trellis::checkpoint::native
