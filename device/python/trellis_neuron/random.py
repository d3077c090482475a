"""Generators of `torch.neuron`: one per device. Equal seeds give the CPU's numbers."""

import torch

from . import _rank
from ._index import index_of
from ._index import ops as _ops


def _all():
    """Every device; on a rank's thread that rank's alone, because the others are in use by their
    own threads."""
    rank = _rank.current()
    return range(_ops.device_count()) if rank is None else [rank]


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _ops.manual_seed(_signed(seed), index_of(None))


def manual_seed_all(seed: int) -> None:
    for index in _all():
        _ops.manual_seed(_signed(seed), index)


def seed() -> int:
    """A new seed for the current device, from the host's source of randomness; returns it."""
    value = torch.Generator().seed()
    manual_seed(value)
    return value


def seed_all() -> int:
    value = torch.Generator().seed()
    manual_seed_all(value)
    return value


def initial_seed(device=None) -> int:
    return _ops.initial_seed(index_of(device)) & 0xFFFF_FFFF_FFFF_FFFF


def get_rng_state(device="neuron") -> torch.Tensor:
    return _ops.get_rng_state(index_of(device))


def set_rng_state(new_state: torch.Tensor, device="neuron") -> None:
    _ops.set_rng_state(new_state, index_of(device))


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in _all()]


def set_rng_state_all(new_states) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _signed(seed: int) -> int:
    """Seeds are 64 bits; operators take signed ones."""
    seed = int(seed) & 0xFFFF_FFFF_FFFF_FFFF
    return seed - (1 << 64) if seed >> 63 else seed
