#include "base/files/partial_files.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

namespace trellis {
namespace {

// A signal handler may touch lock-free atomics, and what was written before they said so.
enum class Slot { kFree, kTaken, kNamed };
struct Name {
  std::atomic<Slot> state{Slot::kFree};
  std::array<char, 4096> path{};
};
std::array<Name, 64> partial_names;
static_assert(std::atomic<Slot>::is_always_lock_free);

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kSignals.size()> handlers_before{};

/// Signal handler: removes the partial files, then restores the previous handler and raises the
/// signal again. The signal is pending until this function returns; the previous handler runs then.
void remove_and_end(int signal) {
  for (const Name& name : partial_names) {
    if (name.state == Slot::kNamed) ::unlink(name.path.data());
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == signal) ::sigaction(signal, &handlers_before[i], nullptr);
  }
  ::raise(signal);
}

}  // namespace

PartialFile::PartialFile(const std::filesystem::path& path) : slot_(-1) {
  std::error_code error;
  const std::string name = std::filesystem::absolute(path, error).string();
  if (error || name.size() >= Name{}.path.size()) return;
  for (std::size_t i = 0; i < partial_names.size(); ++i) {
    Slot free = Slot::kFree;
    if (!partial_names[i].state.compare_exchange_strong(free, Slot::kTaken)) continue;
    std::memcpy(partial_names[i].path.data(), name.c_str(), name.size() + 1);
    partial_names[i].state = Slot::kNamed;
    slot_ = static_cast<int>(i);
    return;
  }
}

PartialFile::~PartialFile() {
  if (slot_ >= 0) partial_names[static_cast<std::size_t>(slot_)].state = Slot::kFree;
}

RemovesPartialFiles::RemovesPartialFiles() {
  struct sigaction ours{};
  ours.sa_handler = remove_and_end;
  sigemptyset(&ours.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &handlers_before[i]);
    if (handlers_before[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &ours, nullptr);
  }
}

RemovesPartialFiles::~RemovesPartialFiles() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction now{};
    ::sigaction(kSignals[i], nullptr, &now);
    if (now.sa_handler == remove_and_end) ::sigaction(kSignals[i], &handlers_before[i], nullptr);
  }
}

}  // namespace trellis
