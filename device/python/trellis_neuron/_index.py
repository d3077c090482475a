"""Device indices, and the processes that may use them."""

import os

import torch

NAME = "neuron"
_forked_after_use = False


def _after_fork_in_child():
    global _forked_after_use
    _forked_after_use = _forked_after_use or torch.ops.trellis.is_configured()


os.register_at_fork(after_in_child=_after_fork_in_child)


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had used the device: its threads and its
    simulator did not come along."""
    return _forked_after_use


def refuse_in_fork() -> None:
    if _forked_after_use:
        raise RuntimeError(
            "Cannot re-initialize neuron in a forked subprocess: the parent had used the device. "
            "Use the 'spawn' start method of multiprocessing, or fork before the first use"
        )


class _Operators:
    """torch.ops.trellis, for everything that uses the device: refuses in such a process."""

    def __getattr__(self, name):
        refuse_in_fork()
        return getattr(torch.ops.trellis, name)


ops = _Operators()


def index_of(device) -> int:
    """The index of a device, a "neuron:3", an int or None (the current one). Raises ValueError for
    another kind of device, RuntimeError in a process that may not use the device."""
    refuse_in_fork()
    if device is None:
        return torch._C._accelerator_getDeviceIndex()
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != NAME:
            raise ValueError(f"expected a {NAME} device, got {device}")
        index = device.index
    return torch._C._accelerator_getDeviceIndex() if index is None or index < 0 else index
