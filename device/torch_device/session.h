#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <nlohmann/json.hpp>

#include "device/torch_device/backends.h"
#include "device/torch_device/devices.h"
#include "device/torch_device/step_meter.h"

namespace trellis::device {

/// Schema trellis.torch_device_options/1.
struct TorchDeviceOptions {
  std::string device;   ///< see find_device
  std::string library;  ///< "": none
  std::string backend;  ///< "": bytes go through the host
  int world_size = 1;
  int first_rank = 0;        ///< lowest rank of this process
  int first_local_rank = 0;  ///< its place among the ranks of this host
  std::uint64_t seed = 0;
};
/// Throws ConfigError: no JSON, a key that is missing or unknown.
[[nodiscard]] TorchDeviceOptions parse_torch_device_options(const std::string& text);

/// A device of LibTorch in this process, for a run's ranks: which rank has which one, and what
/// their steps took.
class TorchDeviceSession {
 public:
  explicit TorchDeviceSession(TorchDeviceOptions options);

  /// Ranks share devices evenly when there are more ranks on a host than devices.
  [[nodiscard]] c10::Device device_of(int rank) const;
  void bind(int rank);
  void begin_step();  ///< of the bound rank
  void end_step();
  /// Schema trellis.measured/1: of all ranks of this process and those that were taken.
  [[nodiscard]] nlohmann::json measured() const;
  [[nodiscard]] nlohmann::json check_operators(const nlohmann::json& portability) const;
  [[nodiscard]] const Backends& backends() const { return *backends_; }

  [[nodiscard]] std::string give_accounts() const;
  void take_accounts(std::string_view bytes);

 private:
  [[nodiscard]] nlohmann::json rank_row(int rank, const StepMeter& meter) const;
  [[nodiscard]] nlohmann::json memory_of(c10::Device device) const;
  void seed(c10::Device device) const;
  void refuse_ranks_without_collectives() const;

  TorchDeviceOptions options_;
  void* library_ = nullptr;
  OfferedDevice device_;
  std::optional<Backends> backends_;
  mutable std::mutex mutex_;
  std::map<int, std::unique_ptr<StepMeter>> meters_;     ///< by rank
  nlohmann::json other_rows_ = nlohmann::json::array();  ///< of other processes
};

}  // namespace trellis::device
