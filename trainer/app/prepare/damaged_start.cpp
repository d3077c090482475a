#include "trainer/app/prepare/damaged_start.h"

#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/output_error.h"
#include "base/process/launch.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/lifecycle/damaged.h"

namespace trellis::trainer {
namespace {

using checkpoint::native::DamagedCheckpoint;

/// "" when it is what was saved, or cannot be read now: then it stays as it is.
std::string damage_in(const checkpoint::Place& place) {
  try {
    return checkpoint::first_damage(place);
  } catch (const Error&) {
    return "";
  }
}

std::string advice(const RunRequest& request, const checkpoint::Place& damaged) {
  const auto older = checkpoint::next_whole(damaged);
  if (!older)
    return "there is no older checkpoint that is whole: begin again without it, or bring it back "
           "from a copy";
  std::string command;
  for (const std::string& word : request.command_line)
    command += (command.empty() ? "" : " ") + shell_word(word);
  const std::string address = checkpoint::Place{damaged.storage, older->tag}.address();
  return "the newest one before it that is whole is of step " + std::to_string(older->step) +
         "; go on from there with:\n  " + command + " " +
         shell_word("exp_manager.resume_from_checkpoint=" + address);
}

bool is_watched(const RunRequest& request, const std::optional<Launch>& launch) {
  const RunConfig config = load_run_config(request);
  if (!config.exp_manager.checkpoints.resume_from_checkpoint.empty()) return true;
  return request.resume && request.attempt <= 1 && !(launch && launch->restart > 0);
}

[[noreturn]] void begin_again(const RunRequest& request) {
  std::cout << std::flush;
  std::vector<std::string> words = request.command_line;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
  throw OutputError("/proc/self/exe", errno);
}

}  // namespace

void after_damage(const RunRequest& request, const DamagedCheckpoint& damage) {
  const checkpoint::Place& place = damage.place();
  if (damage_in(place).empty()) throw ConfigError(damage.what());
  const std::optional<Launch> launch = find_launch(process_environment);
  if (is_watched(request, launch))
    throw ConfigError(std::string(damage.what()) + "\n" + advice(request, place));
  const std::string name = checkpoint::set_aside(place);
  log_warning(std::string(damage.what()) + "; it is kept as " + name +
              ", and the run goes on from the checkpoint before it");
  if (launch && launch->processes > 1)
    throw ConfigError(place.address() +
                      ": was damaged and is set aside; a start of all processes goes on from the "
                      "checkpoint before it");
  begin_again(request);
}

}  // namespace trellis::trainer
