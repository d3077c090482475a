"""Memory of `torch.neuron`: what the modelled allocator of a core holds, in bytes."""

import json
import pickle
from typing import Any

import torch

from ._index import index_of
from ._index import ops as _ops


def memory_stats(device=None) -> dict[str, Any]:
    """Counters by name: TorchNeuron's, allocated_bytes.current, reserved_bytes.peak, …,
    num_alloc_retries, num_ooms, and PyTorch's, active_bytes.all.peak, … ."""
    index = index_of(device)
    return {**torch.accelerator.memory_stats(index), **_own_stats(index)}


def _own_stats(index: int) -> dict[str, Any]:
    return _flat(json.loads(_ops.memory_stats(index)))


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif key != "schema":
            flat[prefix + key] = value
    return flat


def memory_allocated(device=None) -> int:
    return memory_stats(device)["allocated_bytes.current"]


def max_memory_allocated(device=None) -> int:
    return memory_stats(device)["allocated_bytes.peak"]


def memory_reserved(device=None) -> int:
    return memory_stats(device)["reserved_bytes.current"]


def max_memory_reserved(device=None) -> int:
    return memory_stats(device)["reserved_bytes.peak"]


def memory_snapshot(device=None) -> dict[str, Any]:
    """Segments and their blocks under PyTorch's names; schema trellis.memory_snapshot/1."""
    return json.loads(_ops.memory_snapshot(index_of(device)))


def keep_memory_events(events: int, device=None) -> None:
    """How many allocator events memory_timeline() keeps from here on; 0: none."""
    _ops.keep_memory_events(index_of(device), events)


def memory_timeline(device=None) -> dict[str, Any]:
    """The kept events, the totals before them, and the peak of each phase; schema
    trellis.memory_timeline/1."""
    return json.loads(_ops.memory_timeline(index_of(device)))


def _record_memory_history(enabled: str | None = "all", *_, max_entries: int = 1 << 16, **__):
    """PyTorch's name, as profilers call it: keeps allocator events from here on; None: no more."""
    for index in range(_ops.device_count()):
        keep_memory_events(0 if enabled is None else min(max_entries, 1 << 16), index)


def _snapshot(device=None) -> dict[str, Any]:
    """PyTorch's form of memory_snapshot(), which its viewer reads."""
    return {"device_traces": [], **memory_snapshot(device)}


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def memory_summary(device=None) -> str:
    """A table of memory_stats() under TorchNeuron's names, for reading."""
    index = index_of(device)
    stats = _own_stats(index)
    width = max(map(len, stats), default=0)
    return "\n".join(
        [
            f"neuron:{index} memory",
            *(f"  {key:<{width}}  {value:>18,}" for key, value in stats.items()),
        ]
    )


def reset_peak_memory_stats(device=None) -> None:
    _ops.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device=None) -> None:
    _ops.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    _ops.empty_cache()
