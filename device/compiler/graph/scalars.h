#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trellis::device {

/// The non-tensor arguments of an operation: "dim=[-1] keepdim=1 alpha=0.5".
class Scalars {
 public:
  explicit Scalars(std::string_view text);
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] double number(std::string_view name, double otherwise) const;
  [[nodiscard]] std::optional<double> maybe(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  [[nodiscard]] bool flag(std::string_view name, bool otherwise) const {
    return integer(name, otherwise ? 1 : 0) != 0;
  }
  [[nodiscard]] std::string text(std::string_view name) const;
  /// "[1,2]" or a single number; empty when absent.
  [[nodiscard]] std::vector<std::int64_t> list(std::string_view name) const;

 private:
  [[nodiscard]] const std::string* find(std::string_view name) const;
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace trellis::device
