"""A program whose ranks are processes: what each recorded goes to the first, which simulates."""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import ranks
from ._index import ops as _ops


def are_ranks() -> bool:
    """Whether the ranks of this program are processes, of which there are several."""
    return dist.is_initialized() and ranks.current() is None and dist.get_world_size() > 1


class Processes:
    """Every rank makes one and calls its functions together with the others. What goes wrong on one
    is raised on all: none waits for another that has left."""

    def __init__(self) -> None:
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo")  # costs no simulated time
        devices: list[Any] = [None] * self._size
        dist.all_gather_object(devices, torch.neuron.current_device(), group=self._group)
        if devices != list(range(self._size)):
            raise RuntimeError(
                f"simulate: ranks 0 to {self._size - 1} use neuron:{devices}: ranks that are "
                "processes are simulated on one host, rank r on neuron:r (LOCAL_RANK); on several "
                "hosts use `trellis train`"
            )

    def simulate_step(self) -> str:
        """The report of the step of all ranks, for each of them."""
        return self._of_all(_ops.give_step, _ops.take_step, lambda: _ops.simulate_step(0))

    def accounts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Memory and portability of all ranks, for each of them."""
        return self._of_all(
            _ops.give_accounts,
            _ops.take_accounts,
            lambda: (json.loads(_ops.memory_report()), json.loads(_ops.portability_report())),
        )

    def _of_all(self, give: Callable, take: Callable, make: Callable[[], Any]) -> Any:
        """What the first rank makes when it has what the others give."""
        everyone = [None] * self._size if self._rank == 0 else None
        dist.gather_object(give([self._rank]), everyone, dst=0, group=self._group)
        said: list[Any] = [None, None]  # the result, or why there is none
        if everyone is not None:
            try:
                for theirs in everyone[1:]:
                    take(theirs)
                said[0] = make()
            except (RuntimeError, ValueError) as error:
                said[1] = str(error)
        dist.broadcast_object_list(said, src=0, group=self._group)
        if said[1] is not None:
            raise RuntimeError(said[1])
        return said[0]
