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
    """Every rank makes one and calls its functions together with the others."""

    def __init__(self) -> None:
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        device = torch.neuron.current_device()
        if device != self._rank:
            raise RuntimeError(
                f"simulate: rank {self._rank} uses neuron:{device}: ranks that are processes are "
                "simulated on one host, rank r on neuron:r (LOCAL_RANK); on several hosts use "
                "`trellis train`"
            )
        self._group = dist.new_group(backend="gloo")  # costs no simulated time

    def simulate_step(self) -> str:
        """The report of the step of all ranks, for each of them. Raises RuntimeError everywhere
        when it cannot be simulated."""
        self._bring(_ops.give_step, _ops.take_step)
        return self._from_first(lambda: _ops.simulate_step(0))

    def accounts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Memory and portability of all ranks, for each of them."""
        self._bring(_ops.give_accounts, _ops.take_accounts)
        return (
            json.loads(self._from_first(_ops.memory_report)),
            json.loads(self._from_first(_ops.portability_report)),
        )

    def _bring(self, give: Callable, take: Callable) -> None:
        mine = give([self._rank])
        everyone = [None] * self._size if self._rank == 0 else None
        dist.gather_object(mine, everyone, dst=0, group=self._group)
        for theirs in (everyone or [])[1:]:
            take(theirs)

    def _from_first(self, make: Callable[[], str]) -> str:
        said: list[Any] = [None, None]  # the text, or why there is none
        if self._rank == 0:
            try:
                said[0] = make()
            except Exception as error:
                said[1] = str(error)
        dist.broadcast_object_list(said, src=0, group=self._group)
        if said[1] is not None:
            raise RuntimeError(said[1])
        return said[0]
