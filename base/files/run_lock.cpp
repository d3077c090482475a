#include "base/files/run_lock.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"
#include "base/files/file_stream.h"
#include "base/output_error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::optional<FileLock> locked(const fs::path& file, const std::string& advice) {
  try {
    return FileLock::try_lock(file);
  } catch (const std::system_error& error) {
    throw ConfigError(file.string() + ": cannot write here: " + error.code().message() + "; " +
                      advice);
  }
}

}  // namespace

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  std::string command = text_of("/proc/self/cmdline");
  while (!command.empty() && command.back() == '\0') command.pop_back();
  for (char& c : command) {
    if (static_cast<unsigned char>(c) < ' ')
      c = ' ';  // words end with NUL; a newline in one would break the line
  }
  return "process " + std::to_string(::getpid()) + " on host " + host.data() + ": " + command;
}

RunLock::RunLock(const fs::path& folder, const std::string& advice)
    : file_(folder / kFileName), lock_(locked(file_, advice)) {
  if (!lock_) {
    const std::string holder = text_of(file_);
    throw ConfigError(folder.string() + ": another process writes there now: " +
                      (holder.empty() ? "its name is not known yet" : holder) +
                      "; wait for its end, or " + advice);
  }
  const std::string text = this_process();
  if (::ftruncate(lock_->descriptor(), 0) != 0) throw OutputError(file_, errno);
  DescriptorBuffer out(lock_->descriptor());
  out.sputn(text.data(), static_cast<std::streamsize>(text.size()));
  if (const int reason = out.flush(); reason != 0) throw OutputError(file_, reason);
}

RunLock::~RunLock() {
  if (!lock_ || lock_->descriptor() < 0) return;  // moved from
  std::error_code ignored;
  fs::remove(file_, ignored);  // before the lock ends: whoever waits sees that the file has gone
}

}  // namespace trellis
