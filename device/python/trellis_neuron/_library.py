"""Loads the shared libraries of the device."""

import torch

from ._find import COLLECTIVES, DEVICE, find  # noqa: F401


def load(name: str = DEVICE) -> None:
    torch.ops.load_library(str(find(name)))
