#include "trainer/app/prepare/host_facts.h"
#include "base/number_text.h"

#include <sys/resource.h>

#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

namespace trellis::trainer {

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

std::string host_memory_text(const analysis::HostFacts& host, const analysis::RunFacts& facts,
                             const nlohmann::json& memory) {
  const std::int64_t run = host.bytes_peak - host.bytes_before;
  std::string text = "host memory: " + human_bytes(host.bytes_peak) + " at its peak, " +
                     human_bytes(run) + " of it by the run";
  if (memory.is_null() || facts.verb != "train") return text;
  std::int64_t tensors = 0;
  for (const nlohmann::json& rank : memory.at("ranks"))
    tensors += rank.at("peak_bytes").get<std::int64_t>();
  return text + "; tensors of all ranks at their peaks: " + human_bytes(tensors);
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g s", seconds);
  return text.data();
}

}  // namespace trellis::trainer
