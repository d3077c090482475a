#pragma once

#include "runtime/crash.h"

namespace trellis::trainer {

/// While it lives, Ctrl-C and SIGTERM end the run at the next step border, with complete files; a
/// second one ends it at once. SIGQUIT (Ctrl-\) prints what each rank does and changes nothing.
/// Signals of crashes let the ranks write their dumps first. One at a time in a process: signals
/// belong to the process.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  /// Whether SIGTERM came, such as a scheduler's before it takes the machine away.
  [[nodiscard]] bool was_terminated() const;

 private:
  runtime::CrashHandler crashes_;
};

}  // namespace trellis::trainer
