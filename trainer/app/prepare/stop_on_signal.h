#pragma once

#include "runtime/hangs/crash.h"

namespace trellis::trainer {

/// While it lives, Ctrl-C, SIGTERM and SIGHUP end the run at the next step border, with complete
/// files; a second one of them, whichever, ends it at once. One that was ignored, as nohup does,
/// stays ignored. SIGQUIT (Ctrl-\) prints what each rank does and changes nothing.
/// Signals of crashes let the ranks write their dumps first. One at a time in a process: signals
/// belong to the process.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  /// True if SIGTERM came, for example from a scheduler that is about to take the machine away.
  [[nodiscard]] bool was_terminated() const;

 private:
  runtime::CrashHandler crashes_;
  void (*picture_before_)(int);
};

}  // namespace trellis::trainer
