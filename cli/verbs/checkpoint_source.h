#pragma once

#include <memory>
#include <string>

#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::cli {

/// Opens checkpoints of any format to show or compare them.
class CheckpointReader {
 public:
  /// `config_file`: of the training that saved a folder of NxD, NxDT or NNM, whose weights are then
  /// shown; "": its files are.
  explicit CheckpointReader(std::string config_file) : config_file_(std::move(config_file)) {}

  /// Null: exit_code() says why, and the message is out. Throws ConfigError.
  [[nodiscard]] std::unique_ptr<checkpoint::TensorSource> open(const std::string& address);
  /// Throws ConfigError when a configuration was named that no checkpoint needed.
  void check_config_is_used() const;
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  std::string config_file_;
  bool is_used_ = false;
  int exit_code_ = 0;
};

}  // namespace trellis::cli
