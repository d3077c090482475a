#pragma once

// Everything that a program needs to train its own model without a YAML file: NxD's interface in
// C++. Checkpoints: trainer/nxd/checkpoint/checkpoints.h.
#include "trainer/nxd/initialize_parallel_model.h"
#include "trainer/nxd/lightning.h"
#include "trainer/nxd/lora_config.h"
#include "trainer/nxd/neuronx_distributed_config.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/nxd/nxd_optimizer.h"
#include "trainer/nxd/sequential_model.h"
#include "trainer/parallel_layers/grads.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/parallel_layers/qkv_linear.h"
