"""The module `torch.neuron`: TorchNeuron's names over the emulated device. Indices are logical
NeuronCores of the emulated machine."""

import json
from typing import Any

import torch

from . import memory, random  # noqa: F401
from ._index import NAME, in_bad_fork, index_of, refuse_in_fork
from ._index import ops as _ops
from .memory import (  # noqa: F401
    empty_cache,
    keep_memory_events,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    memory_timeline,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .random import (  # noqa: F401
    _get_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)

# ── devices ──


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    """Whether the machine was configured, by a call or by the first use of a device."""
    return torch.ops.trellis.is_configured() and not in_bad_fork()


def __getattr__(name: str):
    """What is an attribute of torch.cuda and changes: torch.utils.checkpoint asks the first before
    it keeps a generator's state."""
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return random.default_generators()
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")


def init() -> None:
    """Configures the default machine now instead of at the first use."""
    _ops.device_count()


def configure(
    instance: str | None = None,
    nodes: int | None = None,
    *,
    world_size: int | None = None,
    shape_only: bool | None = None,
    record: bool | None = None,
    logical_core_size: int | None = None,
    estimate_unknown: bool = True,
) -> None:
    """Makes the devices of another machine. What is None is as the environment says, else as the
    default machine. estimate_unknown: operations without a program on the modelled core take
    estimated time and are listed in reports; False: simulating them is an error. Raises
    RuntimeError while tensors are alive on a device, ValueError for an unknown machine."""
    _ops.configure(
        _device_options(
            instance=instance,
            nodes=nodes,
            world_size=world_size,
            shape_only=shape_only,
            record=record,
            logical_core_size=logical_core_size,
            estimate_unknown=estimate_unknown,
        )
    )


def _device_options(**options: Any) -> str:
    """The document that the device reads, without what is None."""
    given = {key: value for key, value in options.items() if value is not None}
    return json.dumps({"schema": "trellis.device_options/1", **given})


def configure_default(world_size: int) -> None:
    """The default machine (environment included) with this many ranks."""
    _ops.configure_default(world_size)


def session_options() -> dict[str, Any]:
    """The machine in use: instance, nodes, world_size, shape_only, memory_per_core_bytes, …"""
    return json.loads(_ops.session_options())


def device_count() -> int:
    return _ops.device_count()


def current_device() -> int:
    return index_of(None)


def set_device(device) -> None:
    torch._C._accelerator_setDeviceIndex(index_of(device))


class device:
    """Context manager: makes a device current. None: no change."""

    def __init__(self, device=None):
        self._index = -1 if device is None else index_of(device)
        self._before = -1

    def __enter__(self):
        if self._index >= 0:
            self._before = current_device()
            set_device(self._index)
        return self

    def __exit__(self, *_):
        if self._before >= 0:
            set_device(self._before)
        return False


class device_of(device):
    """Context manager: makes the device of a tensor current; no change for a tensor of another kind
    of device."""

    def __init__(self, tensor):
        super().__init__(tensor.get_device() if tensor.device.type == NAME else None)


class DeviceProperties:
    """name: the chip, "trn2"; total_memory: bytes of HBM of one logical core."""

    def __init__(self, name: str, total_memory: int):
        self.name, self.total_memory = name, total_memory

    def __repr__(self):
        return f"DeviceProperties(name={self.name!r}, total_memory={self.total_memory})"


def get_device_properties(device=None) -> DeviceProperties:
    index_of(device)
    options = session_options()
    return DeviceProperties(options["chip"], options["memory_per_core_bytes"])


def get_device_name(device=None) -> str:
    """ "neuron trn2 (trn2.48xlarge)": torchtitan looks for the first word, then takes the name in
    get_device_properties() for its table of peaks."""
    return f"{NAME} {get_device_properties(device).name} ({session_options()['instance']})"


def synchronize(device=None) -> None:
    torch.accelerator.synchronize(torch.device(NAME, index_of(device)))


def simulated_time_ps(device=None) -> int:
    """What the device's simulated clock says after everything issued so far."""
    return _ops.simulated_time_ps(index_of(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def mem_get_info(device=None) -> tuple[int, int]:
    """Free and total bytes of HBM of one logical core."""
    total = get_device_properties(device).total_memory
    return total - memory_reserved(device), total


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float32, torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used the device: its threads and its
    simulator did not come along."""
    return in_bad_fork()


# ── streams and events: PyTorch's own, for this device ──


def Stream(device=None, priority: int = 0) -> torch.Stream:
    return torch.Stream(torch.device(NAME, index_of(device)), priority=priority)


def Event(
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
) -> torch.Event:
    refuse_in_fork()
    return torch.Event(
        torch.device(NAME),
        enable_timing=enable_timing,
        blocking=blocking,
        interprocess=interprocess,
    )


def current_stream(device=None) -> torch.Stream:
    return torch.accelerator.current_stream(torch.device(NAME, index_of(device)))


def default_stream(device=None) -> torch.Stream:
    index = index_of(device)
    return torch.Stream(
        stream_id=0, device_index=index, device_type=current_stream(index).device_type
    )


def set_stream(stream: torch.Stream | None) -> None:
    refuse_in_fork()
    if stream is not None:
        torch.accelerator.set_stream(stream)


class stream:
    """Context manager: makes a stream current. None: no change."""

    def __init__(self, stream):
        self._stream, self._before = stream, None

    def __enter__(self):
        if self._stream is not None:
            self._before = current_stream(self._stream.device)
            set_stream(self._stream)
        return self._stream

    def __exit__(self, *_):
        set_stream(self._before)
        return False


class _utils:
    """What torch.load asks of a device module."""

    @staticmethod
    def _get_device_index(device, optional: bool = False, allow_cpu: bool = False) -> int:
        return index_of(device)
