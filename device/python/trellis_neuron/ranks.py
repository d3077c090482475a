"""Ranks as threads of one process: each has a NeuronCore, a torch.distributed world of its own, and one rendezvous with the others."""

import sys
import threading
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _library
from ._rank import current as current_rank, local as _local
from .neuron import session_options

_CANCELLED = "cancelled: another rank of this world failed"  # what the runtime throws in ranks that a failure wakes
_one_run_at_a_time = threading.Lock()


class RankThreads:
    """The ranks of one run_ranks() call."""

    def __init__(self, size: int, timeout_s: float):
        _library.load(_library.COLLECTIVES)
        shape_only = session_options()["shape_only"]
        self.size, self.store = size, dist.HashStore()
        self.native = torch.classes.trellis.RankWorld(str(_library.find()), size, shape_only, int(timeout_s * 1000))
        self.results: list[Any] = [None] * size
        self.failures: list[tuple[int, BaseException]] = []  # in order of time
        self._lock = threading.Lock()

    def run(self, rank: int, fn: Callable, args: tuple) -> None:
        """The life of a rank's thread."""
        _local.rank, _local.ranks, _local.world = rank, self, _World()
        try:
            self.native.enter(rank)
            with torch.autograd.set_multithreading_enabled(False):
                self.results[rank] = fn(rank, *args)
        except BaseException as error:  # KeyboardInterrupt and SystemExit end the other ranks too
            with self._lock:
                self.failures.append((rank, error))
            self.native.fail(rank, f"rank {rank}: {error}")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            self.native.leave(rank)
            torch.ops.trellis.bind_rank(-1)  # the rank's tensors are the caller's now
            _local.rank = _local.ranks = _local.world = None

    def barrier(self) -> None:
        """Meets all ranks; costs no simulated time."""
        self.native.barrier(_local.rank)


def current() -> RankThreads | None:
    """The ranks that the calling thread belongs to; None outside of run_ranks()."""
    return getattr(_local, "ranks", None)


def run_ranks(fn: Callable, world_size: int, *args: Any, timeout_s: float = 100.0) -> list[Any]:
    """Calls fn(rank, *args) on `world_size` threads; rank r owns neuron:r. Returns what they returned, by rank.

    In fn, `torch.distributed.init_process_group("neuron")` joins the ranks. The first failure (in time) is raised here after all ranks have
    ended; ranks that wait for the failed one are woken. timeout_s: a rank later than this at a communication is named.
    """
    if current() is not None:
        raise RuntimeError("run_ranks: a rank cannot start ranks of its own")
    devices = torch.neuron.device_count()
    if not 1 <= world_size <= devices:
        raise ValueError(f"run_ranks: expected a world size of 1 to {devices} (the machine's logical cores), got {world_size}")
    with _one_run_at_a_time, _Worlds():
        ranks = RankThreads(world_size, timeout_s)
        # Daemons: Ctrl-C ends the program although ranks wait for each other.
        threads = [threading.Thread(target=ranks.run, args=(rank, fn, args), name=f"rank {rank}", daemon=True) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _raise_cause(ranks.failures)
    return ranks.results


def _raise_cause(failures: list[tuple[int, BaseException]]) -> None:
    if not failures:
        return
    rank, error = next(((r, e) for r, e in failures if _CANCELLED not in str(e)), failures[0])
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"raised by rank {rank} of run_ranks()")
    raise error


# ── torch.distributed's state, one per rank ──


class _World(c10d._World):
    """One rank's state. The class attributes hide the base's properties, which are shared by the whole process."""

    default_pg = pg_map = pg_names = pg_group_ranks = pg_backend_config = group_count = tags_to_pg = pg_to_tag = None
    pg_coalesce_state = comms = None

    def __init__(self):
        self.default_pg, self.group_count, self.comms = None, 0, []
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag, self.pg_coalesce_state = {}, {}, {}


class _WorldOfThread:
    """Stands where torch.distributed keeps its state: a rank thread sees its own, every other thread the process's."""

    def __init__(self, process):
        object.__setattr__(self, "_process", process)

    def _here(self):
        return getattr(_local, "world", None) or self._process

    def __getattr__(self, name):
        return getattr(self._here(), name)

    def __setattr__(self, name, value):
        setattr(self._here(), name, value)


class _Worlds:
    """While ranks run, torch.distributed's state is per thread, and so is the table in which C++ finds groups by name."""

    def __enter__(self):
        self._world, self._hook = c10d._world, sys.excepthook
        self._threads = torch.get_num_threads()
        c10d._world = _WorldOfThread(self._world)
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        torch.set_num_threads(1)  # ranks share the host's cores

    def __exit__(self, *_):
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        c10d._world, sys.excepthook = self._world, self._hook
        torch.set_num_threads(self._threads)

