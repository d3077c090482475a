#include "cli/run_self.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>

#include "base/error.h"

extern char** environ;

namespace trellis::cli {

std::string run_self(const std::vector<std::string>& arguments) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> out(std::tmpfile(), &std::fclose);
  if (!out) throw Error(ExitCode::kInternal, "no temporary file for the output of trellis " + arguments.front());
  std::vector<std::string> words = {"trellis"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ::fileno(out.get()), STDOUT_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (failed == 0) ::waitpid(child, &status, 0);
  if (failed != 0 || !WIFEXITED(status)) throw Error(ExitCode::kInternal, "trellis " + arguments.front() + " could not be run, or was ended from outside");
  if (WEXITSTATUS(status) != 0) throw Error(static_cast<ExitCode>(WEXITSTATUS(status)), "trellis " + arguments.front() + " failed; its message stands above");
  std::rewind(out.get());
  std::string text;
  std::array<char, 1 << 16> block{};
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), out.get())) > 0;) text.append(block.data(), n);
  return text;
}

}  // namespace trellis::cli
