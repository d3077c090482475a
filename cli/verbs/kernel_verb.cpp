#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/options/not_empty.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"
#include "device/kernels/catalogue.h"
#include "device/kernels/kernel.h"
#include "device/kernels/kernel_report.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "traces/perfetto_writer.h"

namespace trellis::cli {

namespace {

struct KernelOptions {
  device::KernelRequest request;
  std::string instance = sim::kProgramInstance, trace;
  std::vector<std::string> overrides;
  bool list = false, json = false;
};

/// "lhs_transposed" is "--lhs-transposed" on the command line.
std::string option_name(std::string parameter) {
  std::replace(parameter.begin(), parameter.end(), '_', '-');
  return fmt::format("--{}", parameter);
}

/// The parameters of all kernels; those that a kernel does not have are refused when it is known
/// which one is meant.
void add_sizes(CLI::App& verb, const std::shared_ptr<KernelOptions>& options) {
  std::set<std::string> seen;
  for (const device::KernelSpec& spec : device::kernel_catalogue()) {
    for (const device::KernelParameter& p : spec.parameters) {
      if (!seen.insert(p.name).second) continue;
      const auto set = [options, name = p.name](std::int64_t value) {
        options->request.sizes[name] = value;
      };
      if (p.flag) {
        const auto set_flag = [set](std::int64_t value) { set(value > 0 ? 1 : 0); };
        const std::string names =
            p.name == "lhs_transposed" ? "--lhs-transposed,--transposed" : option_name(p.name);
        verb.add_flag_function(names, set_flag, p.meaning)
            ->group("Sizes")
            ->default_str(std::to_string(p.value))
            ->check(CLI::IsMember({"true", "false", "1", "0"}));
      } else {
        verb.add_option_function<std::int64_t>(option_name(p.name), set, p.meaning)
            ->group("Sizes")
            ->type_name("N");
      }
    }
  }
}

int run(const KernelOptions& options) {
  if (options.list) {
    std::cout << (options.json ? device::catalogue_json().dump(1) + "\n"
                               : device::catalogue_text());
    return 0;
  }
  if (options.request.name.empty())
    throw ConfigError("trellis kernel: which one? `trellis kernel --list` shows all of them");
  (void)device::find_kernel(options.request.name);  // before anything that takes time
  const sim::SystemConfig system =
      sim::load_system(options.instance, {.logical_core_size = 1, .overrides = options.overrides});
  sim::Simulator simulator(system);
  OutputFiles files({{"--trace", options.trace}});
  const device::KernelTiming timing =
      device::time_kernel(options.request, system, simulator, {.pieces = !options.trace.empty()});
  files.write("--trace", [&] {
    std::ostringstream trace;
    traces::write_perfetto(device::kernel_timeline(timing), trace);
    return trace.str();
  });
  std::cout << (options.json ? device::timing_json(timing, options.instance).dump(1) + "\n"
                             : device::timing_text(timing, options.instance))
            << std::flush;
  files.finish();
  return 0;
}

}  // namespace

void add_kernel(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("kernel", "how long one kernel takes on one core, and what bounds it");
  auto options = std::make_shared<KernelOptions>();
  verb->add_option("name", options->request.name, "e.g. matmul, flash_attention; see --list");
  verb->add_flag("--list", options->list,
                 "the catalogue: every kernel with its parameters and what it is for");
  verb->add_option("--instance", options->instance, "the machine")->capture_default_str();
  verb->add_option(
      "--dtype", options->request.dtype,
      "bf16, fp16, fp32 (exact: four passes), tf32, fp8e4m3, …; default: the kernel's first");
  verb->add_option("--variant", options->request.variant, "loop order; default: the kernel's best");
  verb->add_option("--cores", options->request.cores,
                   "1: a physical core, as kernel benchmarks measure; 2: both of a logical core")
      ->capture_default_str();
  verb->add_option("--set", options->overrides,
                   "another hardware number, e.g. core.dma.engine_rate=\"20 GB/s\"")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--trace", options->trace, "write a Perfetto trace: engines and DMA queues")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_flag("--json", options->json,
                 "one JSON document (schema trellis.kernel/1; --list: trellis.kernels/1)");
  add_sizes(*verb, options);
  verb->footer(
      "Time is what a kernel benchmark reports: on the device, from the program's start to its "
      "stop as a profiler sees it, and what one\n"
      "execution costs in the benchmark's loop beyond that. MFU is the operation's FLOPs over that "
      "time and the array's peak at the dtype.\n"
      "Examples:\n"
      "  trellis kernel matmul --m 4096 --k 4096 --n 4096 --lhs-transposed\n"
      "  trellis kernel flash_attention --queries 16384 --keys 16384 --trace attention.pftrace\n"
      "  trellis kernel add --elements 100000000 --set core.dma.engine_rate=\"18 GB/s\"");
  add_kernel_run(*verb, exit_code);
  verb->callback([verb, options, &exit_code] {
    if (verb->get_subcommands().empty()) exit_code = run(*options);
  });
}

}  // namespace trellis::cli
