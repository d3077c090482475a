#include "cli/sweep/child_processes.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>

#include "base/error.h"

extern char** environ;

namespace trellis::cli::layouts {
namespace {

volatile std::sig_atomic_t stop = 0;

/// Without SA_RESTART: waiting for a child ends too.
void handle_signals(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

ChildProcesses::ChildProcesses(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  handle_signals([](int) { stop = 1; });
}

ChildProcesses::~ChildProcesses() {
  for (const auto& [child, key] : running_) ::kill(child, SIGKILL);
  for (const auto& [child, key] : running_) ::waitpid(child, nullptr, 0);
  handle_signals(SIG_DFL);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool ChildProcesses::stop_requested() { return stop != 0; }

void ChildProcesses::start(std::size_t key, const std::vector<std::string>& arguments) {
  std::filesystem::create_directories(folder_of(key));
  std::vector<std::string> words = {"trellis"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string out = (folder_of(key) / "stdout").string(), err = (folder_of(key) / "stderr").string();
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // a Ctrl-C of the terminal is the parent's
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, "/proc/self/exe", &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw Error(ExitCode::kInternal, "trellis " + arguments.front() + " could not be started: out of processes or memory?");
  running_[child] = key;
}

std::optional<ChildProcesses::Result> ChildProcesses::wait() {
  while (stop == 0) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, 0);
    if (child < 0 && errno == EINTR) continue;
    const auto found = running_.find(child);
    if (found == running_.end()) throw Error(ExitCode::kInternal, "a child process was lost");
    Result result{found->second, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), {}, {}};
    running_.erase(found);
    result.out = read_text(folder_of(result.key) / "stdout");
    result.err = read_text(folder_of(result.key) / "stderr");
    std::error_code ignored;
    std::filesystem::remove_all(folder_of(result.key), ignored);
    return result;
  }
  return std::nullopt;
}

}  // namespace trellis::cli::layouts
