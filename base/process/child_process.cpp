#include "base/process/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

extern char** environ;

namespace trellis {

namespace {

/// True if the variable identifies this process within a job, or gives the address of the others.
bool is_of_a_launcher(std::string_view variable) {
  constexpr std::array<std::string_view, 14> kBeginnings{
      "RANK=", "WORLD_SIZE=",  "LOCAL_RANK=",  "LOCAL_WORLD_SIZE=",    "GROUP_RANK=",
      "ROLE_", "MASTER_ADDR=", "MASTER_PORT=", "TORCHELASTIC_",        "SLURM_",
      "OMPI_", "PMI_",         "PMIX_",        "JOB_COMPLETION_INDEX="};
  return std::ranges::any_of(
      kBeginnings, [&](std::string_view beginning) { return variable.starts_with(beginning); });
}

std::vector<char*> environment_of(const ChildProcess& child) {
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (child.no_environment || (child.alone && is_of_a_launcher(*variable))) continue;
    variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  return variables;
}

}  // namespace

pid_t start_child(const ChildProcess& child) {
  std::vector<std::string> words = {child.program == "/proc/self/exe" ? "trellis"
                                                                      : child.program.string()};
  words.insert(words.end(), child.arguments.begin(), child.arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  if (child.in >= 0) posix_spawn_file_actions_adddup2(&files, child.in, STDIN_FILENO);
  if (child.out >= 0) posix_spawn_file_actions_adddup2(&files, child.out, STDOUT_FILENO);
  if (child.err >= 0) posix_spawn_file_actions_adddup2(&files, child.err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (child.own_group) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t id = 0;
  const int failed = ::posix_spawn(&id, child.program.c_str(), &files, &attributes, pointers.data(),
                                   environment_of(child).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0)
    throw ConfigError(fmt::format("cannot run {} {}: {}", words[0],
                                  child.arguments.empty() ? "" : child.arguments[0],
                                  std::strerror(failed)));
  return id;
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      throw Error(ExitCode::kInternal, fmt::format("waitpid: {}", std::strerror(errno)));
  }
  return exit_code_of(status);
}

OutputFile::OutputFile(const std::filesystem::path& file)
    : descriptor_(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
  if (descriptor_ < 0)
    throw ConfigError(
        fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
}

OutputFile::~OutputFile() { ::close(descriptor_); }

}  // namespace trellis
