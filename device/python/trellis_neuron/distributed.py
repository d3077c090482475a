"""The c10d backend `neuron`: between rank threads in this process, or, with one process per rank,
over Gloo on the same bytes."""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from . import _library, _records, neuron, ranks

DEFAULT_AXIS = "world"
_relayed: dict[tuple, int] = {}  # groups made so far, by axis and ranks
_process: list[_records.OfProcess] = []  # of the default group of now; none before the first
before_end: list[Callable[[], None]] = []  # called when the default group is about to end


def _create(options, group_options) -> dist.Backend:
    """Called by init_process_group() and new_group(). group_options: None or {"axis": "tp"}, what
    exposed time is charged to."""
    axis = _axis(group_options)
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    if (threads := ranks.current()) is not None:
        if len(members) == options.group_size and max(members) >= threads.size:
            raise ValueError(f"group of ranks {members}: run_ranks() started {threads.size} ranks")
        group = threads.native.group(ranks.current_rank(), axis, members)
    else:
        group = _relay(options, axis, members)
    return dist.ProcessGroup.unbox(group)._get_backend(torch.device(neuron.NAME))


def _axis(group_options) -> str:
    if group_options is None:
        return DEFAULT_AXIS
    if not isinstance(group_options, dict) or set(group_options) - {"axis"}:
        raise ValueError(
            f'backend neuron: expected pg_options of the form {{"axis": "tp"}}, got '
            f"{group_options!r}"
        )
    return group_options.get("axis", DEFAULT_AXIS)


def _relay(options, axis: str, members: list[int]):
    """This process is one rank: Gloo carries the bytes."""
    _library.load(_library.COLLECTIVES)
    if not options.global_ranks_in_group:
        _own_one_core(options.group_rank, options.group_size)
        _process[:] = [_records.OfProcess(options.store, options.group_rank, options.group_size)]
    elif not _process:  # another backend's default group
        store = dist.distributed_c10d._get_default_store()
        _process[:] = [_records.OfProcess(store, dist.get_rank(), dist.get_world_size())]
    finalized = dist.distributed_c10d._world.comms
    if not any(isinstance(each, _End) for each in finalized):
        finalized.append(_End())
    carrier = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    gloo = dist.ProcessGroupGloo(
        options.store, options.group_rank, options.group_size, options.timeout
    )
    carrier._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    key = (axis, tuple(members))
    instance = _relayed[key] = _relayed.get(key, -1) + 1
    return torch.ops.trellis.relay_group(
        carrier.boxed(), str(_library.find()), axis, members, instance, _process[0].native
    )


def _own_one_core(rank: int, size: int) -> None:
    """A process of a distributed program owns one core: its device index is its local rank."""
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    local_rank = int(os.environ.get("LOCAL_RANK", rank % local_size))
    if not neuron.is_initialized():
        neuron.configure_default(world_size=local_size)
    if neuron.session_options()["shape_only"]:
        raise RuntimeError(
            "backend neuron: in shape-only mode tensors have no bytes to send to another "
            "process: run the ranks as threads "
            "(trellis_neuron.run_ranks), or configure with shape_only=False"
        )
    torch.ops.trellis.bind_rank(local_rank)


def _rendezvous_of_threads(process_handler):
    """init_method="env://" (the default) on a rank thread: rank, size and store are
    run_ranks()'s."""

    def handler(url, *args, **kwargs):
        threads = ranks.current()
        if threads is None:
            yield from process_handler(url, *args, **kwargs)
        else:
            yield threads.store, ranks.current_rank(), threads.size

    return handler


class _End:
    """Among what destroy_process_group() finalizes before it ends the groups."""

    def finalize(self) -> None:
        for notify in list(before_end):
            notify()


def register() -> None:
    dist.Backend.register_backend(neuron.NAME, _create, extended_api=True, devices=[neuron.NAME])
    handlers = sys.modules[
        "torch.distributed.rendezvous"
    ]._rendezvous_handlers  # by name: a function hides the module
    handlers["env"] = _rendezvous_of_threads(handlers["env"])
