"""Generators of `torch.neuron`: one per device. Equal seeds give the CPU's numbers. A state is a
seed and an offset, 16 bytes; those of a CPU generator, as earlier versions had them, are taken."""

import torch

from . import _rank
from ._index import index_of
from ._index import ops as _ops

_generators: dict[int, torch.Generator] = {}


def default_generator(index: int) -> torch.Generator:
    if index not in _generators:
        with torch._C._DisableTorchDispatch():  # a fake mode would not know the operator
            _generators[index] = _ops.default_generator(index)
    return _generators[index]


def default_generators() -> tuple[torch.Generator, ...]:
    return tuple(map(default_generator, range(_ops.device_count())))


def _get_generator(device) -> torch.Generator:
    return default_generator(index_of(device))


def _all():
    """Every device; on a rank's thread that rank's alone, because the others are in use by their
    own threads."""
    rank = _rank.current()
    return range(_ops.device_count()) if rank is None else [rank]


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _get_generator(None).manual_seed(_unsigned(seed))


def manual_seed_all(seed: int) -> None:
    for index in _all():
        default_generator(index).manual_seed(_unsigned(seed))


def seed() -> int:
    """A new seed for the current device, from the host's source of randomness; returns it."""
    return _get_generator(None).seed()


def seed_all() -> int:
    value = torch.Generator().seed()
    manual_seed_all(value)
    return value


def initial_seed(device=None) -> int:
    return _get_generator(device).initial_seed()


def get_rng_state(device="neuron") -> torch.Tensor:
    return _get_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device="neuron") -> None:
    _get_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in _all()]


def set_rng_state_all(new_states) -> None:
    for index, state in zip(_all(), new_states):
        set_rng_state(state, index)


def _unsigned(seed: int) -> int:
    return int(seed) & 0xFFFF_FFFF_FFFF_FFFF
