#include "cli/options/fault_texts.h"

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::cli {
namespace {

constexpr const char* kFactor = "2";

[[noreturn]] void refuse(const std::string& fault) {
  throw ConfigError(fmt::format(
      "--fault {}: expected slow:core=RANK@FACTOR, slow:link=A-B@FACTOR or down:link=A-B, with the "
      "numbers of two chips that a link joins, or the name of a link as in the report's list",
      fault));
}

}  // namespace

std::optional<std::string> slow_part_of_fault(const std::string& fault) {
  const bool slow = fault.starts_with("slow:"), down = fault.starts_with("down:");
  if (!slow && !down) return std::nullopt;
  const std::string part = fault.substr(fault.find(':') + 1);
  const std::size_t equals = part.find('='), at = part.rfind('@');
  if (equals == std::string::npos) refuse(fault);
  const std::string kind = part.substr(0, equals);
  if ((kind != "core" && kind != "link") || (down && (kind == "core" || at != std::string::npos)))
    refuse(fault);
  const std::string name =
      part.substr(equals + 1, at == std::string::npos ? std::string::npos : at - equals - 1);
  const std::string factor = at == std::string::npos ? kFactor : part.substr(at + 1);
  return fmt::format("{}:{}={}", kind, name, down ? "down" : factor);
}

void split_faults(std::vector<std::string>& faults, std::vector<std::string>& slow) {
  std::vector<std::string> others;
  for (const std::string& fault : faults) {
    if (const auto part = slow_part_of_fault(fault)) {
      slow.push_back(*part);
    } else {
      others.push_back(fault);
    }
  }
  faults = std::move(others);
}

}  // namespace trellis::cli
