#include "trainer/app/prepare/run_facts.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include "trainer/app/prepare/software_facts.h"
#include "trainer/config/step_place.h"

namespace trellis::trainer {
namespace {

/// `core:3=1` changes nothing.
bool slows(const std::string& part) {
  return std::strtod(part.c_str() + part.rfind('=') + 1, nullptr) != 1;
}

analysis::StepPlace place_of(const RunRequest& request, const RunConfig& config) {
  analysis::StepPlace place =
      analysis::step_place(config, request.instance, request.nodes, request.hardware);
  if (!request.calibrated) place.unlike.emplace_back("without the machine's fitted numbers");
  for (const std::string& part : request.slow) {
    if (slows(part)) place.unlike.push_back("a slow part: " + part);
  }
  return place;
}

}  // namespace

analysis::RunFacts facts_of(const RunRequest& request, const RunConfig& config) {
  analysis::RunFacts facts;
  facts.verb = request.shape_only ? "simulate" : "train";
  facts.name = config.name;
  facts.device = request.device;
  facts.instance = request.instance;
  facts.nodes = request.nodes;
  facts.world_size = config.world_size();
  facts.tp = config.tp();
  facts.pp = config.pp();
  facts.dp = config.dp();
  facts.num_microbatches = config.num_microbatches();
  facts.parameters = config.num_parameters();
  facts.tokens_per_step = config.tokens_per_step();
  facts.model_flops_per_step = config.model_flops_per_step();
  facts.precision = config.precision.type;
  facts.attempt = request.attempt;
  facts.max_steps = config.trainer.max_steps;
  facts.place = place_of(request, config);
  std::copy_if(request.slow.begin(), request.slow.end(), std::back_inserter(facts.slow), slows);
  std::sort(facts.slow.begin(), facts.slow.end());
  facts.software = software_facts(config, /*functionalization=*/false);
  if (request.device == "neuron")
    facts.validity = analysis::judge_validity(analysis::read_validated_record(), facts.place);
  if (!request.calibration.empty())
    facts.calibration = analysis::read_calibration(request.calibration);
  return facts;
}

}  // namespace trellis::trainer
