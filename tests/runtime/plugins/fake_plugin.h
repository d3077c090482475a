#pragma once

#include "device/plugin.h"

/// The members that do something; what a loader checks first is the entry's.
trellis_device_plugin_t fake_plugin();
