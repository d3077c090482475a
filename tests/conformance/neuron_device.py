"""Loads the device under test once per process: `torch.device("neuron")` works after this
import."""

import os
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "device/python"))
import trellis_neuron  # noqa: E402, F401  # registers the device

torch.set_num_threads(1)  # a sum's last bits must not depend on who is free to help
torch.neuron.configure(world_size=2, shape_only=os.environ.get("TRELLIS_SHAPE_ONLY") == "1")

DEVICE = torch.device("neuron:0")
OTHER_DEVICE = torch.device("neuron:1")
