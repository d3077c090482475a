#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"

namespace trellis::cli {

/// Where the ranks' tensors are, and who makes the device. `whose`: whose device it is, before the
/// list of devices.
template <typename Request>
void add_device_options(CLI::App& verb, Request& request, const std::string& whose = "") {
  verb.add_option("--device", request.device,
                  whose +
                      "neuron (emulated), cpu, or a device of LibTorch, which is timed by the "
                      "clock: cuda, xpu, mps, privateuse1 or the name that its library registers")
      ->capture_default_str()
      ->check(not_empty("a device"));
  verb.add_option("--device-library", request.device_library,
                  "shared library that registers the device with LibTorch when it is loaded")
      ->type_name("PATH")
      ->check(not_empty("a file name"));
  verb.add_option("--device-plugin", request.device_plugin,
                  "provider of the device: torch_device (any device of LibTorch), or the library "
                  "of another one (device/plugin.h); none: what --device needs")
      ->type_name("PLUGIN")
      ->check(not_empty("a provider"));
  verb.add_option("--backend", request.backend,
                  "c10d backend between ranks of a device of LibTorch: gloo, nccl (LibTorch for "
                  "CUDA), or one of --device-library; none: bytes go through the host's memory, "
                  "summed in the order of ranks")
      ->type_name("BACKEND")
      ->check(not_empty("a backend"));
}

/// Where a verb's ranks run: the device, --instance and --threads.
template <typename Request>
void add_rank_options(CLI::App& verb, Request& request, const std::string& whose = "") {
  add_device_options(verb, request, whose);
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
