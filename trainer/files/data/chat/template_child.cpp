#include "trainer/files/data/chat/template_child.h"

#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "base/process/child_process.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// ENV/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so → ENV/bin/python3
std::string python_of_library(std::string_view library) {
  const std::size_t packages = library.find("/site-packages/");
  if (packages == std::string_view::npos) return "";
  const fs::path environment =
      fs::path(library.substr(0, packages)).parent_path().parent_path();  // without lib/python3.11
  const fs::path python = environment / "bin" / "python3";
  std::error_code ignored;
  return fs::exists(python, ignored) ? python.string() : "";
}

std::string python_of_this_process() {
  std::string python;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found) {
        auto& text = *static_cast<std::string*>(found);
        if (text.empty()) text = python_of_library(library->dlpi_name);
        return text.empty() ? 0 : 1;
      },
      &python);
  return python;
}

/// Python of the environment in which this program was built: verbs that train nothing load no
/// LibTorch.
std::string python_of_build() {
  std::error_code ignored;
  return fs::exists(TRELLIS_BUILD_PYTHON, ignored) ? TRELLIS_BUILD_PYTHON : "";
}

std::string python_of_path() {
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/bin";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const fs::path python = fs::path(rest.substr(0, end)) / "python3";
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::error_code ignored;
    if (fs::exists(python, ignored)) return python.string();
  }
  return "";
}

}  // namespace

std::string find_python() {
  if (const char* named = std::getenv("TRELLIS_PYTHON"); named != nullptr && *named != '\0')
    return named;
  std::string python = python_of_this_process();
  if (python.empty()) python = python_of_build();
  if (python.empty()) python = python_of_path();
  if (python.empty())
    throw ConfigError(
        "chat templates are rendered and shell scripts are parsed by a Python, and there is none: "
        "expected a python3 in PATH, or its path in TRELLIS_PYTHON");
  return python;
}

std::string why_no_templates() {
  try {
    TemplateChild().await_ready();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TemplateChild::TemplateChild(std::string_view program) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw ConfigError(std::string("cannot make a socket: ") + std::strerror(errno));
  socket_ = ends[0];
  ChildProcess child;
  child.program = find_python();
  child.arguments = {"-I", "-c", std::string(program)};
  child.in = child.out = ends[1];
  child.own_group = true;
  child.no_environment = true;
  try {
    child_ = start_child(child);
  } catch (...) {
    ::close(ends[0]);
    ::close(ends[1]);
    throw;
  }
  ::close(ends[1]);
  ::fcntl(socket_, F_SETFL, O_NONBLOCK);
}

TemplateChild::~TemplateChild() { kill(); }

void TemplateChild::await_ready() {
  std::string answer;
  const End end = ask("", kStartLimit, answer);
  const nlohmann::json document =
      nlohmann::json::parse(end == End::kAnswered ? answer : "", nullptr, false);
  if (document.is_object() && document.contains("chats")) return;
  const std::string why = document.is_object() ? document.value("error", "") : "";
  throw ConfigError(why.empty() ? find_python() +
                                      " did not start: chat templates need Python 3 with "
                                      "jinja2; name another one in TRELLIS_PYTHON"
                                : terminal_line(why));
}

void TemplateChild::kill() {
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  (void)wait_for(child_);
  ::close(socket_);
  child_ = -1;
}

bool TemplateChild::take(std::string& answer) {
  const std::size_t line = received_.find('\n');
  if (line == std::string::npos) return false;
  const std::size_t begin = line + 1, size = std::strtoull(received_.c_str(), nullptr, 10);
  if (received_.size() < begin + size) return false;
  answer = received_.substr(begin, size);
  received_.erase(0, begin + size);
  return true;
}

TemplateChild::End TemplateChild::ask(const std::string& line, std::chrono::milliseconds limit,
                                      std::string& answer) {
  if (child_ < 0) return End::kDied;
  const Clock::time_point until = Clock::now() + limit;
  std::size_t sent = 0;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    if (take(answer)) return End::kAnswered;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    pollfd ready{socket_, static_cast<short>(sent < line.size() ? POLLIN | POLLOUT : POLLIN), 0};
    const int count = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      kill();
      return End::kTooLate;
    }
    ssize_t moved = 1;
    if ((ready.revents & POLLOUT) != 0) {
      moved = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (moved > 0) sent += static_cast<std::size_t>(moved);
    } else {
      moved = ::recv(socket_, buffer.data(), buffer.size(), 0);
      if (moved > 0) received_.append(buffer.data(), static_cast<std::size_t>(moved));
      if (received_.size() > kMostAnswer) moved = 0;
    }
    if (moved <= 0 && errno != EAGAIN && errno != EINTR) {
      kill();
      return End::kDied;
    }
  }
}

}  // namespace trellis::trainer
