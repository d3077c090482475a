"""The c10d backend `neuron`: between rank threads in this process, or between processes that are
one rank each."""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from . import _library, _rank_process, neuron, ranks

DEFAULT_AXIS = "world"
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
        group = _of_process(options, axis, members)
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


def _of_process(options, axis: str, members: list[int]):
    """This process is one rank."""
    _library.load(_library.COLLECTIVES)
    if not options.global_ranks_in_group:
        _own_one_core(options.group_rank, options.group_size)
    finalized = dist.distributed_c10d._world.comms
    if not any(isinstance(each, _End) for each in finalized):
        finalized.append(_End())
    return _rank_process.of(options, members).group(axis, members, options.timeout)


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
    _rank_process.register()
    dist.Backend.register_backend(neuron.NAME, _create, extended_api=True, devices=[neuron.NAME])
    handlers = sys.modules[
        "torch.distributed.rendezvous"
    ]._rendezvous_handlers  # by name: a function hides the module
    handlers["env"] = _rendezvous_of_threads(handlers["env"])
