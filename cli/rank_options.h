#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/number_range.h"

namespace trellis::cli {

/// Where a verb's ranks run: --device, --instance and --threads. `device`: what the option says.
template <typename Request>
void add_rank_options(CLI::App& verb, Request& request, const std::string& device) {
  verb.add_option("--device", request.device, device)
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "neuron"}));
  verb.add_option("--instance", request.instance,
                  "machine to emulate with --device neuron (see `trellis describe`); none: the "
                  "configuration's `instance`, else trn1.32xlarge");
  verb.add_option("--threads", request.host_threads,
                  "ranks that run at the same time on the host; 0: one per host core. Results do "
                  "not depend on it")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a thread"));
}

}  // namespace trellis::cli
