#include "analysis/sweep/child_processes.h"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/child_process.h"

namespace trellis::analysis {
namespace {

volatile std::sig_atomic_t stop = 0;

/// Without SA_RESTART: waiting for a child ends too.
void handle_signals(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// A new folder `place`.XXXXXX: one with a known name may be the user's, and this one is removed at
/// the end.
std::filesystem::path new_folder(const std::filesystem::path& place) {
  std::string name = place.string() + ".XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw ConfigError(place.string() +
                      ": no folder for the simulations can be made there: " + std::strerror(errno));
  return name;
}

}  // namespace

ChildProcesses::ChildProcesses(const std::filesystem::path& place) : folder_(new_folder(place)) {
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
  const OutputFile out(folder_of(key) / "stdout"), err(folder_of(key) / "stderr");
  running_[start_child({.arguments = arguments,
                        .out = out.descriptor(),
                        .err = err.descriptor(),
                        .own_group = true})] = key;
}

std::optional<ChildProcesses::Result> ChildProcesses::wait() {
  while (stop == 0) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, 0);
    if (child < 0 && errno == EINTR) continue;
    const auto found = running_.find(child);
    if (found == running_.end()) throw Error(ExitCode::kInternal, "a child process was lost");
    Result result{found->second, exit_code_of(status), {}, {}};
    running_.erase(found);
    result.out = read_text(folder_of(result.key) / "stdout");
    result.err = read_text(folder_of(result.key) / "stderr");
    std::error_code ignored;
    std::filesystem::remove_all(folder_of(result.key), ignored);
    return result;
  }
  return std::nullopt;
}

}  // namespace trellis::analysis
