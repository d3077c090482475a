#pragma once

namespace trellis::device {

/// Installs the RecordFunction observer that notifies the recorders of scopes: user scopes
/// ("phase=…", "microbatch=…", "layer=…") and the autograd node whose backward runs. Once per
/// process; threads that are bound to no rank are not affected.
void install_scope_observer();

}  // namespace trellis::device
