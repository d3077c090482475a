#include <gtest/gtest.h>

#include "analysis/accuracy/program_run.h"
#include "analysis/accuracy/replay_report.h"
#include "base/files/input_file.h"
#include "tests/fuzz/changed_files.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/sim/profile/small_profile.h"

/// Whatever an instruction trace or a program's text holds, it is replayed, or refused with an
/// error that names the file: never executed as anything else, and soon.
namespace trellis::fuzz {
namespace {

/// A program that never ends is one of the answers.
void read_or_refuse(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kHang) throw ConfigError(error.what());
    throw;
  }
}

TEST(Profiles, Replay) {
  const TemporaryDirectory directory;
  const std::filesystem::path file =
      directory.write("p.json", sim::samples::small_profile().dump());
  fuzz_files(
      {file},
      [&] {
        read_or_refuse([&] {
          const analysis::Replay replay =
              analysis::replay(sim::read_profile(file), {.explain = false});
          if (const std::string why = unfit(analysis::replay_text(replay)); !why.empty())
            throw std::runtime_error(why);
          (void)analysis::replay_json(replay).dump();
        });
      },
      &mutate_json);
}

TEST(Profiles, ProgramText) {
  const TemporaryDirectory directory;
  const auto machine = analysis::replay_machine("trn2.3xlarge", {});
  const auto imported = sim::import_program(
      sim::parse_profile(sim::samples::small_profile().dump(), "p"), machine.chip.core.limits);
  const std::filesystem::path file = directory.write("p.isa", print(imported.program));
  fuzz_files({file}, [&] {
    read_or_refuse([&] {
      (void)analysis::run_program(read_input_file(file), file.string(), "trn2.3xlarge", {});
    });
  });
}

}  // namespace
}  // namespace trellis::fuzz
