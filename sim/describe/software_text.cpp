#include "sim/describe/software_text.h"

#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/config/load_software.h"
#include "sim/config/overlay.h"
#include "sim/config/software_config.h"
#include "sim/config/system_config.h"
#include "sim/describe/parameters.h"

namespace trellis::sim {
namespace {

struct Described {
  SoftwareStack stack;
  std::string release;
  std::vector<Parameter> parameters;
};

Described read(const std::string& software) {
  Described d{software_stack(software), "", {}};
  LoadOptions options;
  options.software = software;
  Overlay overlay("", options);
  d.release = load_software(software, d.parameters, overlay).release;
  return d;
}

}  // namespace

std::string software_text(const std::string& software) {
  const Described d = read(software);
  std::string text = fmt::format("{}@{}: {}\n  Releases:", d.stack.name, d.release, d.stack.what);
  for (const SoftwareRelease& release : d.stack.releases) text += " " + release.name;
  text += fmt::format("; without one {}\n", d.stack.default_release);
  for (const SoftwareRelease& release : d.stack.releases) {
    for (const SoftwareChange& change : release.changed)
      text += fmt::format("  {:<6} {} ({})\n         {}\n", release.name, change.what,
                          change.source, change.effect);
  }
  return text + fmt::format("  Numbers of {}: ", d.release) + parameters_text(d.parameters);
}

nlohmann::json software_json(const std::string& software) {
  const Described d = read(software);
  nlohmann::json releases = nlohmann::json::array();
  for (const SoftwareRelease& release : d.stack.releases) {
    nlohmann::json changed = nlohmann::json::array();
    for (const SoftwareChange& change : release.changed)
      changed.push_back(
          {{"what", change.what}, {"source", change.source}, {"effect", change.effect}});
    releases.push_back({{"name", release.name}, {"changed", std::move(changed)}});
  }
  return {{"name", d.stack.name},
          {"description", d.stack.what},
          {"release", d.release},
          {"default_release", d.stack.default_release},
          {"releases", std::move(releases)},
          {"parameters", parameters_json(d.parameters)}};
}

}  // namespace trellis::sim
