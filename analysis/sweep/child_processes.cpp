#include "analysis/sweep/child_processes.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/process/child_process.h"

namespace trellis::analysis {
namespace {

volatile std::sig_atomic_t stop = 0;

/// Without SA_RESTART: waiting for a child ends too.
void handle_signals(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now{};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Waits for a child that has ended or is about to.
int wait_status(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return status;
}

constexpr const char* kLock = "trellis_sweep.lock";

/// Folders of sweeps that were killed: their locks are there, and no one has them.
void remove_left_folders(const std::filesystem::path& place) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string begin = place.filename().string() + ".";
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(place.parent_path(), error)) {
    const bool is_ours = entry.path().filename().string().starts_with(begin) &&
                         entry.symlink_status(error).type() == fs::file_type::directory &&
                         fs::exists(entry.path() / kLock, error);
    if (is_ours) left.push_back(entry.path());
  }
  for (const fs::path& folder : left) {
    try {
      if (const auto lock = FileLock::try_lock(folder / kLock)) fs::remove_all(folder, error);
    } catch (const std::system_error&) {
      // Another user's.
    }
  }
}

/// A new folder `place`.XXXXXX: one with a known name may be the user's, and this one is removed at
/// the end.
std::filesystem::path new_folder(const std::filesystem::path& place) {
  remove_left_folders(place);
  std::string name = place.string() + ".XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw ConfigError(place.string() +
                      ": no folder for the simulations can be made there: " + std::strerror(errno));
  return name;
}

}  // namespace

ChildProcesses::ChildProcesses(const std::filesystem::path& place)
    : folder_(new_folder(place)), lock_(FileLock::try_lock(folder_ / kLock)) {
  handle_signals([](int) { stop = 1; });
}

ChildProcesses::~ChildProcesses() {
  for (const Process& process : processes_) ::kill(process.id, SIGKILL);
  for (Process& process : processes_) end(process);
  handle_signals(SIG_DFL);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string ChildProcesses::Result::error() const {
  constexpr std::string_view kMark = "error: ";
  const std::size_t at = err.rfind(kMark);
  const std::string text = at == std::string::npos ? err : err.substr(at + kMark.size());
  return text.substr(0, text.find('\n'));
}

bool ChildProcesses::stop_requested() { return stop != 0; }

void ChildProcesses::end(Process& process) {
  ::close(process.socket);
  (void)wait_status(process.id);
}

/// Processes that ended between two questions, e.g. killed for memory, take no other.
void ChildProcesses::remove_ended() {
  std::erase_if(processes_, [this](Process& process) {
    pollfd socket{process.socket, POLLIN, 0};
    if (process.key || ::poll(&socket, 1, 0) <= 0) return false;
    end(process);
    return true;
  });
}

ChildProcesses::Process& ChildProcesses::idle_process() {
  remove_ended();
  for (Process& process : processes_) {
    if (!process.key) return process;
  }
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0)
    throw Error(ExitCode::kInternal, std::string("socketpair: ") + std::strerror(errno));
  Process process{0, sockets[0], {}};
  try {
    process.id = start_child(
        {.arguments = {"answer"}, .in = sockets[1], .out = sockets[1], .own_group = true});
  } catch (...) {
    ::close(sockets[0]);
    ::close(sockets[1]);
    throw;
  }
  ::close(sockets[1]);
  return processes_.emplace_back(process);
}

void ChildProcesses::start(std::size_t key, const StepQuestion& question) {
  const std::filesystem::path folder = folder_of(key);
  std::filesystem::create_directories(folder);
  Process& process = idle_process();
  const std::string line =
      nlohmann::json{{"config", question.config_file},      {"overrides", question.overrides},
                     {"instance", question.instance},       {"nodes", question.nodes},
                     {"hardware", question.hardware},       {"whole", question.whole},
                     {"out", (folder / "stdout").string()}, {"err", (folder / "stderr").string()}}
          .dump() +
      "\n";
  process.key = key;
  ++running_;
  // One that has gone is found by wait().
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t n = ::send(process.socket, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    sent += static_cast<std::size_t>(n);
  }
}

ChildProcesses::Result ChildProcesses::take(Process& process) {
  Result result{process.key.value(), 0, {}, {}};
  process.key.reset();
  --running_;
  char byte = 0;
  ssize_t got = 0;
  while ((got = ::read(process.socket, &byte, 1)) < 0 && errno == EINTR) {}
  if (got == 1) {
    result.exit_code = static_cast<unsigned char>(byte);
  } else {
    const int ended = exit_code_of(wait_status(process.id));  // not an answer, whatever it says
    result.exit_code = ended < 128 ? static_cast<int>(ExitCode::kInternal) : ended;
    ::close(process.socket);
    processes_.remove_if([&](const Process& each) { return &each == &process; });
  }
  const std::filesystem::path folder = folder_of(result.key);
  result.out = read_text(folder / "stdout");
  result.err = read_text(folder / "stderr");
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}

std::optional<ChildProcesses::Result> ChildProcesses::wait() {
  while (stop == 0) {
    std::vector<pollfd> sockets;
    std::vector<Process*> busy;
    for (Process& process : processes_) {
      if (!process.key) continue;
      sockets.push_back({process.socket, POLLIN, 0});
      busy.push_back(&process);
    }
    if (::poll(sockets.data(), sockets.size(), -1) < 0) continue;  // a signal
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      if (sockets[i].revents != 0) return take(*busy[i]);
    }
  }
  return std::nullopt;
}

}  // namespace trellis::analysis
