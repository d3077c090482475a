#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/hangs/crash.h"

namespace trellis::runtime {

class Rendezvous;

/// Asks every running world to write on stderr what each of its ranks in this process does: step,
/// communication, native stack (async-signal-safe: only sets a flag).
void request_picture();

/// While it lives, a separate thread reports on stderr which ranks go on although their world is
/// over: after a hang or a failure that they should have noticed, with its cause and their native
/// stacks. It needs nothing of them, and no lock of Python's.
class HangWatch {
 public:
  struct Options {
    bool exit = false;      ///< then end the process with the cause's exit code (a hang's is 4): a
                            ///< thread cannot be ended
    int python_signal = 0;  ///< raised after the report unless Python's code has written its
                            ///< stacks: the handler writes them (faulthandler.register); 0: none
    std::function<std::string()> dump = {};  ///< called before a stuck or crashing process ends:
                                             ///< writes its dumps, returns lines for the report
  };
  HangWatch(std::shared_ptr<Rendezvous> rendezvous, Options options);
  /// Python's code runs. With a python_signal it has to be called: without a call for the world's
  /// timeout, a rank is taken to hold Python's lock, so that no other can even reach a
  /// communication.
  void beat() { last_beat_ = Clock::now(); }
  /// Python's code has written Python's stacks, with the lock that keeps them still. The signal's
  /// handler reads them without: that is for ranks that do not give the lock away.
  void python_stacks_written() { has_python_stacks_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  void watch(const std::stop_token& stop);
  void ask_for_python_stacks() const;

  std::shared_ptr<Rendezvous> rendezvous_;
  Options options_;
  CrashDump dump_;
  std::atomic<Clock::time_point> last_beat_{Clock::now()};
  std::atomic<bool> has_python_stacks_ = false;
  std::jthread thread_;  ///< last: it uses the others
};

}  // namespace trellis::runtime
