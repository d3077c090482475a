#pragma once

#include <string_view>

#include "device/driver/session.h"

/// The one Session of the process: what the C ABI (plugin.cpp) and the operators for Python
/// (session_ops.cpp) share.
namespace trellis::device {

/// Reads trellis.device_options/1; what it does not say is as in `otherwise`. Without world_size:
/// every logical core that the environment shows, as many as LibTorch can index. Throws
/// ConfigError.
[[nodiscard]] SessionOptions parse_options(std::string_view json, SessionOptions otherwise = {});
/// The machine that the environment describes (all of default_options() except for world_size).
[[nodiscard]] SessionOptions options_of_environment();
/// The options of a program that configures nothing: one trn2.48xlarge, or what the environment
/// says (TRELLIS_INSTANCE, TRELLIS_NODES, TRELLIS_SHAPE_ONLY, TRELLIS_RECORD,
/// NEURON_LOGICAL_NC_CONFIG, NEURON_RT_NUM_CORES, NEURON_RT_VISIBLE_CORES). Throws ConfigError.
[[nodiscard]] SessionOptions default_options();

/// Makes the devices of `options`. A session that was there ends; throws when tensors are alive on
/// its devices.
void configure_session(const SessionOptions& options);
/// The session; the default one when nothing was configured.
[[nodiscard]] Session& session();
[[nodiscard]] bool is_configured();
/// Ends `step` on every rank that the calling thread owns. Throws when it owns none.
void end_step_on_this_thread(std::int64_t step);
/// Forgets what the calling thread's ranks recorded since their last step ended: it belongs to no
/// step.
void discard_step_on_this_thread();

}  // namespace trellis::device
