#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trellis::analysis {

/// The price of an instance under one way of paying.
struct PricePlan {
  std::string name;     ///< on_demand, reserved, spot, or the user's own word
  double per_hour = 0;  ///< in the file's currency, for one instance
  std::string source;
  bool example = false;  ///< a figure to be replaced
};

struct InstancePrices {
  std::string instance;
  std::vector<PricePlan> plans;  ///< in the file's order
};

/// A user's price file (examples/prices.yaml).
struct PriceFile {
  std::filesystem::path path;
  std::string date;  ///< YYYY-MM-DD: of what day the prices are
  std::string currency;
  std::vector<InstancePrices> instances;
  /// Throws ConfigError that lists the instances which the file knows.
  [[nodiscard]] const InstancePrices& of(const std::string& instance) const;
};

/// Throws one ConfigError with every problem: no date, no source, a price that is not positive, an
/// unknown key.
[[nodiscard]] PriceFile read_prices(const std::filesystem::path& file);

}  // namespace trellis::analysis
