#pragma once

#include "trainer/requests/run_request.h"

namespace trellis::cli {

/// The reaction of `trellis train` to a failure.
struct RestartOptions {
  int most = 0;          ///< restarts of a run; 0: a failure ends it
  bool elastic = false;  ///< each with fewer data-parallel ranks
};

/// Trains in a child process, and in another one after each failure: a signal that ended it, an
/// internal error, a rank out of memory, a hang. It goes on from the newest complete checkpoint in
/// the same folder. Wrong input, a full disk and differing replicas would fail again: they end the
/// run, and so do Ctrl-C and SIGTERM, which the child gets too. Returns the last exit code, 128 + n
/// for signal n. Throws ConfigError for runs without checkpoints and for processes that a launcher
/// started.
int train_with_restarts(const trainer::RunRequest& request, const RestartOptions& options);

/// For such a child: it gets SIGTERM, on which it saves, when the process that started it ends.
void end_with_parent();

}  // namespace trellis::cli
