#include <unistd.h>

#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/input_file.h"
#include "base/files/shared_files.h"
#include "cli/verbs/verbs.h"

namespace trellis::cli {
namespace {

namespace fs = std::filesystem;

struct QuickstartOptions {
  std::vector<std::string> overrides;
  bool only_write = false;
};

/// Writes quickstart.yaml into the current folder. A file of this name that is there already is
/// the user's: it stays and is used.
fs::path write_example() {
  const fs::path target = "quickstart.yaml";
  if (fs::exists(target)) {
    std::cerr << "quickstart.yaml is there already and is used as it is\n";
    return target;
  }
  const fs::path examples = shared_directory("examples", TRELLIS_SOURCE_EXAMPLES_DIR);
  if (!fs::is_regular_file(examples / "quickstart.yaml")) {
    throw ConfigError(
        "the example quickstart.yaml is not installed: expected share/trellis/examples next to "
        "the program's folder; reinstall trellis-neuron, or give a file of your own to `trellis "
        "train`");
  }
  AtomicFile file(target);
  file.stream() << read_input_file(examples / "quickstart.yaml");
  file.commit();
  std::cerr << "wrote quickstart.yaml: a Llama of 8 ranks; edit it and run `trellis train "
               "quickstart.yaml`\n";
  return target;
}

/// Becomes `trellis train FILE overrides…`: progress, signals and the exit code are that verb's.
[[noreturn]] void become_train(const fs::path& file, const std::vector<std::string>& overrides) {
  std::vector<std::string> words{"trellis", "train", file.string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
  throw Error(ExitCode::kInternal, "cannot start the program again: /proc/self/exe");
}

}  // namespace

void add_quickstart(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "quickstart",
      "writes quickstart.yaml here and trains it: a small Llama on 8 emulated NeuronCores");
  auto options = std::make_shared<QuickstartOptions>();
  verb->add_option("overrides", options->overrides,
                   "key=value pairs for `trellis train`, e.g. trainer.max_steps=5");
  verb->add_flag("--write-only", options->only_write, "write the file, train nothing");
  verb->footer("Example:\n  trellis quickstart trainer.max_steps=5");
  verb->callback([options, &exit_code] {
    exit_code = 0;
    const fs::path file = write_example();
    if (!options->only_write) become_train(file, options->overrides);
  });
}

}  // namespace trellis::cli
