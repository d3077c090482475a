#include "analysis/explain/constants.h"

#include <array>
#include <string_view>

namespace trellis::analysis {
namespace {

struct Measurement {
  std::string_view prefix, what;
};

/// The first whose prefix a key has.
constexpr std::array<Measurement, 17> kMeasurements{{
    {"chip.host", "time of a small tensor's copy to the device: `neuron-profile` of one step"},
    {"core.compiler.",
     "`neuron-profile` of one layer: whether the compiler fuses these operations"},
    {"core.dma.",
     "an NKI kernel that copies 64 B to 1 MiB from HBM to SBUF, timed by "
     "`neuron-profile`: `trellis accuracy dma` has the rows to compare with"},
    {"core.planning.",
     "`neuron-profile` of single matrix products of this model's sizes: which "
     "tiles the compiler chose (`trellis kernel` predicts their times)"},
    {"core.passes.", "`neuron-profile` of the operator alone, at this model's size"},
    {"core.",
     "an NKI micro-benchmark of the engine's instruction, 64 to 2,048 columns, timed by "
     "`neuron-profile`"},
    {"launch.collective",
     "`nccom-test allr --minbytes 8 --maxbytes 1KB` on the ranks of one TP "
     "group: its time at the smallest size"},
    {"launch.", "time between two executions of an empty graph: `neuron-profile inspect`"},
    {"collectives.efa",
     "`nccom-test allr` between two instances, 1 MiB to 1 GiB (this one needs "
     "two instances)"},
    {"collectives.",
     "`nccom-test allr`, `allg` and `redsct` on the ranks of one TP group, 1 KiB to "
     "1 GiB; `trellis collectives` prints the same table"},
    {"interconnect.", "`nccom-test sendrecv` between neighbouring chips, 8 B to 256 MiB"},
    {"network.multi_node",
     "seconds of this step on one instance and on two, with the same batch "
     "per rank (this one needs two instances)"},
    {"network.",
     "`nccom-test allr` on two instances and on all of them, 256 MiB (this one needs a "
     "cluster)"},
    {"software.trace",
     "`torch_xla.debug.metrics` of one step: the host's time to record one graph, over its "
     "operations"},
    {"software.launch",
     "`neuron-monitor` of one step: idle time between executions, over the "
     "operations of a micro-batch"},
    {"software.",
     "seconds of this step on one instance, steps 20 to 40, and the device's busy "
     "share in `neuron-monitor`"},
    {"instances.", "`nccom-test allr` over the link that the key names, 256 MiB"},
}};

}  // namespace

std::optional<std::pair<std::string, std::string>> ends_of_range(const std::string& range) {
  constexpr std::string_view kTo = " - ";
  const std::size_t at = range.find(kTo);
  if (at == std::string::npos) return std::nullopt;
  const std::string most = range.substr(at + kTo.size());
  const std::size_t unit = most.find(' ');
  return std::pair(range.substr(0, at) + (unit == std::string::npos ? "" : most.substr(unit)),
                   most);
}

std::string measurement_of(const std::string& key) {
  for (const auto& [prefix, what] : kMeasurements) {
    if (key.starts_with(prefix)) return std::string(what);
  }
  return "the step itself, on one instance";
}

std::vector<UncertainConstant> uncertain_constants(const sim::SystemConfig& system) {
  std::vector<UncertainConstant> all;
  for (const sim::Parameter& parameter : system.parameters) {
    const auto ends = ends_of_range(parameter.range);
    if (ends) all.push_back({parameter, ends->first, ends->second, measurement_of(parameter.key)});
  }
  return all;
}

}  // namespace trellis::analysis
