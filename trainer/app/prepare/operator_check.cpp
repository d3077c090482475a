#include "trainer/app/prepare/operator_check.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/process/run_self.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;

/// "" and a warning: they cannot be listed.
std::string operators_of(const RunRequest& request) {
  std::vector<std::string> arguments = {"portability", request.config_file, "--json"};
  arguments.insert(arguments.end(), request.overrides.begin(), request.overrides.end());
  if (!request.instance.empty())
    arguments.insert(arguments.end(), {"--instance", request.instance});
  std::string operators;
  run_selves({arguments}, 1, [&](std::size_t, const ChildResult& result) {
    if (result.exit_code == 0) {
      operators = result.out;
      return;
    }
    log_warning("the operators of the run are not compared with the device's before step 1: " +
                result.err);
  });
  return operators;
}

std::string list_of(const json& rows) {
  std::string text;
  for (const json& row : rows) {
    std::string places;
    for (const json& place : row.at("places"))
      places += (places.empty() ? "" : ", ") + place.get<std::string>();
    text += "\n  " + row.at("operator").get<std::string>() + " (" + places + ")";
  }
  return text;
}

}  // namespace

void refuse_lacking_operators(const RunRequest& request, const DeviceChoice& choice,
                              const runtime::DevicePlugin& plugin) {
  if (choice.device == "cpu" || plugin.api().check_operators == nullptr) return;
  const std::string operators = operators_of(request);
  if (operators.empty()) return;
  const char* report = nullptr;
  plugin.check(plugin.api().check_operators(operators.c_str(), &report));
  const json found = json::parse(report);
  if (!found.at("falls_back").empty()) {
    log_warning("--device " + choice.device + " hands operators to its fallback, mostly the CPU:" +
                list_of(found.at("falls_back")));
  }
  if (found.at("lacking").empty()) return;
  throw ConfigError(
      "--device " + choice.device +
      ": the device does not have operators of this run: expected a kernel for" +
      list_of(found.at("lacking")) +
      "\n  what to do: use a version of the device's library that has them, or change "
      "the layer; `trellis portability` lists all operators of the run");
}

}  // namespace trellis::trainer
