#pragma once

#include <cstdint>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/record_function.h>

#include "runtime/calls/source_frame.h"

namespace trellis::runtime {

/// Where a communication was called.
struct CallPlace {
  /// Open scopes, the innermost of each kind: "phase=forward microbatch=3
  /// layer=model.layers.0.mlp".
  std::string scopes;
  std::vector<SourceFrame> frames;  ///< innermost first, the user's own; empty: unknown
};

/// ", in phase=forward layer=model.layers.0.mlp, at trainer/modules/mlp.cpp:33 (forward)"; "" for
/// what is unknown.
[[nodiscard]] std::string describe(const CallPlace& place);
/// "…/mlp.cpp:33 (forward)".
[[nodiscard]] std::string describe(const SourceFrame& frame);

/// While it lives, communications of the calling thread were called from this line. The innermost
/// one counts.
class CallSite {
 public:
  explicit CallSite(std::source_location where = std::source_location::current());
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;
  [[nodiscard]] SourceFrame frame() const;

 private:
  std::source_location where_;
  const CallSite* outer_;
};

/// LibTorch's user scopes (RECORD_USER_SCOPE, torch.profiler.record_function) that one thread is
/// in; any thread may ask which.
class OpenScopes {
 public:
  void enter();  ///< the calling thread's, from here on
  void leave();  ///< on the same thread
  /// As CallPlace::scopes.
  [[nodiscard]] std::string text() const;

  void begin(const char* name);  ///< `name` lives until end(name)
  void end(const char* name);    ///< scopes may end in any order

 private:
  mutable std::mutex mutex_;
  std::vector<const char*> open_;  ///< outermost first
  at::CallbackHandle handle_{};
};

/// The place of the calling thread: its scopes, and the line of its CallSite or, without one, of
/// Python's stack. May take Python's lock: hold no other.
[[nodiscard]] CallPlace current_place();

}  // namespace trellis::runtime
