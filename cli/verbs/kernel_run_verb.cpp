#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/files/shared_files.h"
#include "base/process/child_process.h"
#include "cli/verbs/verbs.h"
#include "device/kernels/nki/report.h"
#include "device/kernels/nki/run.h"
#include "sim/config/default_instance.h"
#include "sim/config/load_system.h"
#include "trainer/files/data/chat/template_child.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;
using device::nki::Numbers;

struct KernelRunOptions {
  std::string file, reference, kernel, grid, instance = sim::kProgramInstance;
  std::vector<std::string> inputs, overrides;
  int seed = 0, seconds = 120;
  Numbers numbers = Numbers::kAuto;
  std::optional<double> tolerance;
  bool json = false;
};

/// A folder that is gone with this.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "trellis_kernel_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ExitCode::kOutput,
                  "no folder can be made in " + fs::temp_directory_path().string());
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Python runs the file as a program of its folder would be; it does not find this one's modules.
constexpr const char* kStart =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// The kernel runs in Python, once, over tensors without values. What it says goes to stderr.
void trace_kernel(const KernelRunOptions& options, const fs::path& folder) {
  const fs::path tracer = shared_directory("nki", TRELLIS_SOURCE_NKI_DIR) / "child.py";
  ChildProcess child;
  child.program = trainer::find_python();
  child.arguments = {"-B", "-c", kStart, tracer.string(), options.file, folder.string()};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) child.arguments.insert(child.arguments.end(), {name, value});
  };
  add("--ref", options.reference);
  add("--kernel", options.kernel);
  add("--grid", options.grid);
  for (const std::string& input : options.inputs) add("--input", input);
  add("--seed", std::to_string(options.seed));
  if (options.numbers == Numbers::kNone) child.arguments.emplace_back("--no-values");
  add("--seconds", std::to_string(options.seconds));
  child.out = STDERR_FILENO;
  const int code = wait_for(start_child(child));
  if (code == 0) return;
  if (code == 128 + SIGXCPU || code == 128 + SIGKILL)
    throw ConfigError(
        fmt::format("{}: its trace did not end within {} CPU seconds (--seconds): an "
                    "endless loop?",
                    options.file, options.seconds));
  throw ConfigError(
      fmt::format("{}: the kernel cannot be traced (exit code {})", options.file, code));
}

int run(const KernelRunOptions& options) {
  const sim::SystemConfig system =
      sim::load_system(options.instance, {.logical_core_size = 1, .overrides = options.overrides});
  device::nki::RunOptions how;
  how.numbers = options.numbers;
  how.tolerance = options.tolerance;
  device::nki::RunReport report;
  if (fs::is_directory(options.file)) {
    how.write_results = true;
    report = device::nki::run_kernel(device::nki::read_document(options.file), system, how);
  } else {
    if (!fs::is_regular_file(options.file))
      throw ConfigError(options.file + ": there is no such file");
    const Folder folder;
    trace_kernel(options, folder.path());
    report = device::nki::run_kernel(device::nki::read_document(folder.path()), system, how);
  }
  report.instance = options.instance;
  std::cout << (options.json ? device::nki::report_json(report).dump(1) + "\n"
                             : device::nki::report_text(report))
            << std::flush;
  if (!report.refusals.empty()) return static_cast<int>(ExitCode::kConfig);
  if (!report.mistakes.empty()) return static_cast<int>(ExitCode::kHang);
  return static_cast<int>(report.right() ? ExitCode::kOk : ExitCode::kParity);
}

}  // namespace

void add_kernel_run(CLI::App& kernel, int& exit_code) {
  CLI::App* verb =
      kernel.add_subcommand("run", "an NKI kernel without a device: numbers, mistakes, time");
  auto options = std::make_shared<KernelRunOptions>();
  verb->add_option("file", options->file, "Python with a function under @nki.jit")->required();
  verb->add_option("--ref", options->reference,
                   "Python with inputs(seed) and reference(*inputs); default: the kernel's file")
      ->type_name("FILE");
  verb->add_option("--kernel", options->kernel, "which function, where there are several")
      ->type_name("NAME");
  verb->add_option("--input", options->inputs,
                   "an input of normal numbers, instead of inputs(seed): a=128x512:bf16")
      ->type_name("NAME=SHAPE:DTYPE")
      ->allow_extra_args(false);
  verb->add_option("--grid", options->grid, "the launch grid: one core goes through it")
      ->type_name("N,N");
  verb->add_option("--seed", options->seed, "of the inputs")->capture_default_str();
  verb->add_option("--instance", options->instance, "the machine")->capture_default_str();
  verb->add_option("--set", options->overrides,
                   "another hardware number, e.g. core.dma.engine_rate=\"20 GB/s\"")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--tolerance", options->tolerance,
                   "relative error of an output; default: 1e-5 for fp32, 2^-7 for bf16 and fp16");
  const std::map<std::string, Numbers> words{
      {"auto", Numbers::kAuto}, {"always", Numbers::kAlways}, {"none", Numbers::kNone}};
  verb->add_option("--numbers", options->numbers,
                   "auto: where they take half a minute at most; always; none: time only")
      ->transform(CLI::CheckedTransformer(words));
  verb->add_option("--seconds", options->seconds, "CPU time that the kernel's Python may take")
      ->capture_default_str();
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.kernel_run/1)");
  verb->footer(
      "Exit codes: 0 right; 2 refused; 3 does not fit; 4 a mistake in the kernel; 5 wrong "
      "numbers.\n"
      "Example: trellis kernel run softmax.py --ref softmax_ref.py --instance trn2.48xlarge");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace trellis::cli
