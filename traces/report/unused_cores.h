#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

/// Cores of the machine that run no rank: who rents an instance pays for all of it.
namespace trellis::analysis {

struct CoreUse {
  int used = 0, there = 0;  ///< logical cores of all nodes
  [[nodiscard]] double unused_share() const {
    return there == 0 ? 0 : 1 - static_cast<double>(used) / there;
  }
};

/// The use of cores in a trellis.run_report/1; none: it is of a device that times itself, or older
/// than this figure.
[[nodiscard]] std::optional<CoreUse> core_use(const nlohmann::json& report);
/// "32 of 64 logical cores run no rank: 50.00 % of what is paid for"; "all 64 logical cores run a
/// rank".
[[nodiscard]] std::string unused_text(const CoreUse& use);

}  // namespace trellis::analysis
