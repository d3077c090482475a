#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace trellis::runtime {

/// The native stack of another thread of this process (by the system's number of it), innermost
/// first, one line per frame: "function (library)". A signal interrupts the thread for as long as
/// writing down addresses takes: a system call that it sleeps in may end early. Empty: it did not
/// answer within 200 ms, or has ended.
[[nodiscard]] std::vector<std::string> native_stack(pid_t thread);

}  // namespace trellis::runtime
