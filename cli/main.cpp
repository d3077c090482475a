#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>

#include "base/activity.h"
#include "base/address.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/files/partial_files.h"
#include "base/process/launch.h"
#include "cli/options/suggestion.h"
#include "cli/output/standard_output.h"
#include "cli/output/terminal_stream.h"
#include "cli/verbs/verbs.h"

namespace {

/// True if this process shows its activity: of several processes of one job only the first does.
/// Wrong variables of a launcher are refused later, by the verb.
bool speaks() {
  try {
    const auto launch = trellis::find_launch(trellis::process_environment);
    return !launch || launch->process == 0;
  } catch (const trellis::ConfigError&) {
    return true;
  }
}

std::string first_words(int argc, char** argv) {
  return argc > 1 ? std::string("trellis ") + argv[1] : "trellis";
}

/// Such an argument would forge lines of every message that repeats it, or could not be written
/// into a report; "": there is none.
std::string argument_with_controls(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const auto controls = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
    if (std::ranges::any_of(argument, controls) || trellis::find_no_utf8(argument)) return argument;
  }
  return "";
}

void add_verbs(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  trellis::cli::add_quickstart(app, exit_code);
  trellis::cli::add_train(app, command_line, exit_code);
  trellis::cli::add_simulate(app, command_line, exit_code);
  trellis::cli::add_validate(app, exit_code);
  trellis::cli::add_import(app, exit_code);
  trellis::cli::add_export(app, exit_code);
  trellis::cli::add_checkpoint(app, exit_code);
  trellis::cli::add_verify(app, exit_code);
  trellis::cli::add_resume_check(app, exit_code);
  trellis::cli::add_evaluate(app, exit_code);
  trellis::cli::add_data(app, exit_code);
  trellis::cli::add_describe(app, exit_code);
  trellis::cli::add_kernel(app, exit_code);
  trellis::cli::add_isa(app, exit_code);
  trellis::cli::add_report(app, exit_code);
  trellis::cli::add_diff(app, exit_code);
  trellis::cli::add_gate(app, exit_code);
  trellis::cli::add_memory(app, exit_code);
  trellis::cli::add_cost(app, exit_code);
  trellis::cli::add_goodput(app, exit_code);
  trellis::cli::add_portability(app, exit_code);
  trellis::cli::add_schedule(app, exit_code);
  trellis::cli::add_sweep(app, exit_code);
  trellis::cli::add_collectives(app, exit_code);
  trellis::cli::add_selfcheck(app, exit_code);
  trellis::cli::add_accuracy(app, exit_code);
  trellis::cli::add_calibrate(app, exit_code);
  trellis::cli::add_explain(app, exit_code);
  trellis::cli::add_doctor(app, exit_code);
  trellis::cli::add_answer(app, exit_code);
}

int run(int argc, char** argv) {
  CLI::App app{
      "trellis: an emulated AWS Trainium cluster for LibTorch, and an LLM trainer that runs on "
      "it.\n"
      "Exit codes: 0 ok, 1 internal error, 2 configuration, 3 does not fit, 4 hang or mismatch, 5 "
      "not equal to one rank, 6 past the gate's limit,\n"
      "7 an output could not be written, such as a full disk, 130 interrupted."};
  app.set_version_flag("--version", trellis::cli::version_text());
  app.require_subcommand(1);
  app.footer("Example: trellis train examples/quickstart.yaml trainer.max_steps=10");
  const trellis::cli::TerminalStream out(std::cout), errors(std::cerr);
  int exit_code = 0;
  const std::vector<std::string> command_line(argv, argv + argc);
  if (const std::string bad = argument_with_controls(command_line); !bad.empty()) {
    std::cerr
        << "error: command line: expected arguments in UTF-8 without control characters, got '"
        << trellis::terminal_line(bad) << "'\n";
    return static_cast<int>(trellis::ExitCode::kConfig);
  }
  const auto keys = std::ranges::find_if(
      command_line, [](const std::string& argument) { return trellis::has_keys(argument); });
  if (keys != command_line.end()) {
    std::cerr << "error: command line: '" << trellis::without_keys(*keys)
              << "': " << trellis::kKeysAdvice << "\n";
    return static_cast<int>(trellis::ExitCode::kConfig);
  }
  add_verbs(app, command_line, exit_code);
  try {
    const trellis::Activity activity(speaks() ? first_words(argc, argv) : std::string());
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    app.exit(error, std::cerr, std::cerr);
    if (const std::string near = trellis::cli::suggestion(app, command_line); !near.empty())
      std::cerr << near << "\n";
    return static_cast<int>(trellis::ExitCode::kConfig);
  } catch (const trellis::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  } catch (
      const std::filesystem::filesystem_error& error) {  // a path that cannot be used: its user's
    std::cerr << "error: " << error.path1().string() << ": " << error.code().message() << "\n";
    return static_cast<int>(trellis::ExitCode::kConfig);
  } catch (const std::exception& error) {
    std::cerr << "internal error: " << error.what() << "\n";
    return static_cast<int>(trellis::ExitCode::kInternal);
  }
  return exit_code;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kReportsAtExit = true;
#else
constexpr bool kReportsAtExit = false;
#endif

/// Everything is written by now. LibTorch would take its operators out of its tables one by one,
/// which lasts longer than a small simulation.
[[noreturn]] void leave(int exit_code) {
  std::fflush(nullptr);
  if (kReportsAtExit) std::exit(exit_code);
  std::_Exit(exit_code);
}

}  // namespace

/// The program: one verb per user question. It links neither LibTorch nor SystemC's loader cost
/// into verbs that need neither.
int main(int argc, char** argv) {
  const trellis::RemovesPartialFiles on_signals;
  trellis::cli::StandardOutput output;
  leave(output.finish(run(argc, argv)));
}
