#include "cli/output/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iostream>

#include "base/output_error.h"

namespace trellis::cli {
namespace {

/// A closed stream gets a place where writing fails, so that no file of the program is opened under
/// its number.
void occupy_closed_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    (void)::open("/dev/null", descriptor == STDIN_FILENO
                                  ? O_WRONLY
                                  : O_RDONLY);  // the lowest free number: this one
  }
}

}  // namespace

StandardOutput::StandardOutput() : buffer_(STDOUT_FILENO) {
  occupy_closed_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), which is reported
  before_ = std::cout.rdbuf(&buffer_);
}

StandardOutput::~StandardOutput() { std::cout.rdbuf(before_); }

int StandardOutput::finish(int exit_code) {
  const int reason = buffer_.flush();
  if (reason == 0) return exit_code;
  if (reason == EPIPE) {  // the caller ignores SIGPIPE, else it had ended the process
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  std::cerr << "error: " << OutputError("standard output", reason).what() << "\n";
  return exit_code == 0 ? static_cast<int>(ExitCode::kOutput) : exit_code;
}

}  // namespace trellis::cli
