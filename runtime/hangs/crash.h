#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

namespace trellis::runtime {

/// While one lives, a signal that ends the process (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL) waits
/// until a CrashDump is written, two seconds at most: the dying thread may have a lock that it
/// needs. Then the handler of before gets the signal, such as Python's or a sanitizer's.
class CrashHandler {
 public:
  CrashHandler();
  ~CrashHandler();
  CrashHandler(const CrashHandler&) = delete;
  CrashHandler& operator=(const CrashHandler&) = delete;
};

/// Where handlers of the calling thread's signals run: after a stack overflow the thread's own
/// stack has no place for them. Leaves a thread that has one as it is.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();  ///< REQUIRES: the same thread; on another one it does nothing
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  void* memory_ = nullptr;
};

/// Writes a report on stderr when the process crashes. A thread that the crash leaves alone calls
/// poll().
class CrashDump {
 public:
  /// `dump` writes files and returns lines about them; empty: nothing.
  explicit CrashDump(std::function<std::string()> dump);
  ~CrashDump();
  CrashDump(const CrashDump&) = delete;
  CrashDump& operator=(const CrashDump&) = delete;
  void poll() const;
  /// Calls `dump`. Returns its lines with a line feed after the last one.
  [[nodiscard]] std::string lines() const;

 private:
  std::function<std::string()> dump_;
};

/// A CrashDump with its own thread, which needs no lock of Python's, and a CrashHandler.
class CrashWatch {
 public:
  explicit CrashWatch(std::function<std::string()> dump);

 private:
  CrashDump dump_;
  CrashHandler handler_;
  std::jthread thread_;  ///< last: it uses the others
};

/// Straight to the descriptor: streams have locks that a stuck rank may hold.
void write_to_stderr(const std::string& text);

}  // namespace trellis::runtime
