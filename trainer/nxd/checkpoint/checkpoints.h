#pragma once

// Everything about checkpoints of a model without a YAML file.
#include "trainer/nxd/checkpoint/checkpoint_io.h"
#include "trainer/nxd/checkpoint/legacy_checkpoints.h"
#include "trainer/nxd/checkpoint/nxd_checkpoints.h"
