"""Ranks as threads of one process: each has a NeuronCore, its own torch.distributed world, and one
rendezvous with the others."""

import ctypes
import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Iterable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _library, _per_rank, _records
from ._rank import current as current_rank  # noqa: F401
from ._rank import local as _local
from ._records import add_note as _add_note
from ._records import line as _line
from .neuron import session_options

# what the runtime throws in ranks that a failure wakes
_CANCELLED = "cancelled: another rank of this world failed"
_HANGS = ("communication hang", "communication mismatch")  # how the runtime's texts of them begin
_STACKS_SIGNAL = signal.SIGRTMAX - 3
_PATIENCE_S = 1.0  # for a rank to end after it was interrupted
_MOST_FRAMES = 100  # of a stack, as faulthandler has them
_one_run_at_a_time = threading.Lock()


class RankThreads:
    """The ranks of one run_ranks() call."""

    def __init__(self, size: int, timeout_s: float):
        _library.load(_library.COLLECTIVES)
        shape_only = session_options()["shape_only"]
        self.size, self.store = size, dist.HashStore()
        self.native = torch.classes.trellis.RankWorld(
            str(_library.find()), size, shape_only, int(timeout_s * 1000), _records.prefix()
        )
        self.results: list[Any] = [None] * size
        self.failures: list[tuple[int, BaseException]] = []  # in order of time
        self.raised_at: dict[int, Any] = {}  # traceback by rank: its frames are gone
        self.worlds = [_World() for _ in range(size)]
        self.threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, rank: int, fn: Callable, args: tuple) -> None:
        """The life of a rank's thread."""
        _local.rank, _local.ranks, _local.world = rank, self, self.worlds[rank]
        _per_rank.begin(rank, self.size)
        try:
            self.native.enter(rank)
            with torch.autograd.set_multithreading_enabled(False):
                self.results[rank] = fn(rank, *args)
        except _Abandoned:
            pass
        except BaseException as error:  # KeyboardInterrupt and SystemExit end the other ranks too
            self._failed(rank, error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            self.native.leave(rank)
            torch.ops.trellis.bind_rank(-1)  # the rank's tensors are the caller's now
            _local.rank = _local.ranks = _local.world = None
            _per_rank.end()

    def _failed(self, rank: int, error: BaseException) -> None:
        self.raised_at[rank] = error.__traceback__
        hang = str(error).startswith(_HANGS)
        if hang:  # now, while the others are where they were
            others = [other for other in range(self.size) if other != rank]
            _add_note(error, "where the ranks were:\n" + self.places(others))
        with self._lock:
            self.failures.append((rank, error))
        self.native.fail(rank, f"rank {rank}: {error}", hang)

    def places(self, ranks: Iterable[int]) -> str:
        """The source line that each rank is at, in its program, or where it raised an error."""
        frames = sys._current_frames()

        def place(rank: int) -> str:
            if raised := self.raised_at.get(rank):
                return _line(traceback.extract_tb(raised))
            frame = frames.get(self.threads[rank].ident)
            return "has ended" if frame is None else _line(traceback.extract_stack(frame))

        return "\n".join(f"  rank {rank}: {place(rank)}" for rank in ranks)

    def wait(self) -> None:
        """Returns when every rank has ended, or some go on although their world is over: these are
        interrupted, if they run Python's code, else left."""
        for thread in self.threads:
            while thread.is_alive():
                thread.join(0.02)
                self.native.beat()
                if stuck := self.native.overdue():
                    os.write(2, _stacks().encode())
                    self.native.python_stacks_written()
                    return self._abandon(stuck)

    def _abandon(self, stuck: list[int]) -> None:
        if not self.failures:  # found by the watch, not by a rank
            self._failed(stuck[0], RuntimeError(self.native.cause()))
        text = "these went on although their world was over:\n" + self.places(stuck)
        threads = [self.threads[rank] for rank in stuck]
        for thread in threads:
            ident, error = ctypes.c_ulong(thread.ident), ctypes.py_object(_Abandoned)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)
        deadline = time.monotonic() + _PATIENCE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if left := [rank for rank in stuck if self.threads[rank].is_alive()]:
            text += (
                f"\n  rank {', '.join(map(str, left))} could not be ended and still runs: end "
                "the process, "
                'or pass on_hang="exit"'
            )
        with self._lock:
            for _, error in self.failures:
                _add_note(error, text)

    def check(self) -> None:
        """Raises what only some ranks did. REQUIRES: all have ended well."""
        made = [world.groups_made for world in self.worlds]
        most = max(range(self.size), key=lambda rank: len(made[rank]))
        for rank in range(self.size):
            if len(made[rank]) < len(made[most]):
                raise RuntimeError(
                    f"communication mismatch: rank {most} made group {len(made[most])} at "
                    f"{made[most][len(made[rank])]}, rank {rank} made {len(made[rank])} groups: "
                    "every rank of the world must make every group (init_process_group, "
                    "new_group), "
                    "members or not, in the same order"
                )
        self.native.check_complete()

    def keep_records(self) -> None:
        """Writes what each rank did last when a communication failed, or whenever a rank did and
        the user named a place."""
        failed_communication = any(str(error).startswith(_HANGS) for _, error in self.failures)
        if not (failed_communication or (self.failures and _records.are_asked_for())):
            return
        text = self.native.records()
        for _, error in self.failures:
            _add_note(error, text)

    def barrier(self) -> None:
        """Meets all ranks; costs no simulated time."""
        self.native.barrier(_local.rank)


def _stacks() -> str:
    """What each thread does, as faulthandler writes it. Unlike faulthandler this holds Python's
    lock, so that no stack changes while it is read."""
    text = ""
    for ident, frame in sys._current_frames().items():
        text += f"Thread 0x{ident:016x} (most recent call first):\n"
        for each, line in itertools.islice(traceback.walk_stack(frame), _MOST_FRAMES):
            text += f'  File "{each.f_code.co_filename}", line {line} in {each.f_code.co_name}\n'
    return text + "\n"


class _Abandoned(BaseException):
    """Raised in the thread of a rank that goes on although its world is over."""


def current() -> RankThreads | None:
    """The ranks that the calling thread belongs to; None outside of run_ranks()."""
    return getattr(_local, "ranks", None)


def run_ranks(
    fn: Callable, world_size: int, *args: Any, timeout_s: float = 100.0, on_hang: str = "raise"
) -> list[Any]:
    """Calls fn(rank, *args) on `world_size` threads; rank r owns neuron:r. Returns what they
    returned, by rank.

    In fn, `torch.distributed.init_process_group("neuron")` joins the ranks. The first failure (in
    time) is raised here after all ranks have ended; ranks that wait for the failed one are woken.
    timeout_s: a rank later than this at a communication is named. A rank that goes on one second
    after that is reported on stderr, with its Python and native stacks, whatever it does; on_hang:
    "raise", it is then interrupted (or, in native code, left) and the hang is raised here, or
    "exit", the process ends with exit code 4. What each rank did last is then in a file that
    PyTorch's analyzer of flight records reads; the error says where.
    """
    if current() is not None:
        raise RuntimeError("run_ranks: a rank cannot start ranks itself")
    if on_hang not in ("raise", "exit"):
        raise ValueError(f'run_ranks: on_hang: expected "raise" or "exit", got {on_hang!r}')
    devices = torch.neuron.device_count()
    if not 1 <= world_size <= devices:
        raise ValueError(
            f"run_ranks: expected a world size of 1 to {devices} (the machine's logical cores), "
            f"got {world_size}"
        )
    with _one_run_at_a_time, _per_rank.Threads(), _Worlds():
        ranks = RankThreads(world_size, timeout_s)
        # Daemons: Ctrl-C ends the program although ranks wait for each other.
        ranks.threads = [
            threading.Thread(
                target=ranks.run, args=(rank, fn, args), name=f"rank {rank}", daemon=True
            )
            for rank in range(world_size)
        ]
        with _Watch(ranks, exits=on_hang == "exit"):
            for thread in ranks.threads:
                thread.start()
            ranks.wait()
    ranks.keep_records()
    _raise_cause(ranks.failures)
    try:
        ranks.check()
    except RuntimeError as error:
        _add_note(error, ranks.native.records())
        raise
    return ranks.results


class _Watch:
    """While ranks run, a native thread reports those that are stuck: it needs no lock of Python's.
    A signal to it writes Python's stacks where a rank keeps the lock."""

    def __init__(self, ranks: RankThreads, exits: bool):
        self._ranks, self._exits = ranks, exits

    def __enter__(self):
        faulthandler.register(_STACKS_SIGNAL, file=2, all_threads=True)
        self._ranks.native.watch(self._exits, _STACKS_SIGNAL)

    def __exit__(self, *_):
        self._ranks.native.stop_watching()
        faulthandler.unregister(_STACKS_SIGNAL)


def _raise_cause(failures: list[tuple[int, BaseException]]) -> None:
    if not failures:
        return
    rank, error = next(((r, e) for r, e in failures if _CANCELLED not in str(e)), failures[0])
    _add_note(error, f"raised by rank {rank} of run_ranks()")
    raise error


# ── torch.distributed's state, one per rank ──


class _World(c10d._World):
    """One rank's state. The class attributes hide the base's properties, which are shared by the
    whole process."""

    default_pg = pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = (
        None
    )
    pg_coalesce_state = comms = None

    @property
    def group_count(self) -> int:
        return self._group_count

    @group_count.setter
    def group_count(self, count: int) -> None:
        """torch.distributed counts each group here, those too that the rank is no member of."""
        if count > self._group_count:
            self.groups_made.append(_line(traceback.extract_stack(sys._getframe(1))))
        self._group_count = count

    def __init__(self):
        self.groups_made: list[str] = []  # where in the program
        self.default_pg, self._group_count, self.comms = None, 0, []
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag, self.pg_coalesce_state = {}, {}, {}


class _WorldOfThread:
    """Takes the place where torch.distributed keeps its state: a rank thread sees its own, every
    other thread the process's."""

    def __init__(self, process):
        object.__setattr__(self, "_process", process)

    def _here(self):
        return getattr(_local, "world", None) or self._process

    def __getattr__(self, name):
        return getattr(self._here(), name)

    def __setattr__(self, name, value):
        setattr(self._here(), name, value)


class _Worlds:
    """While ranks run, torch.distributed's state is per thread, and so is the table in which C++
    finds groups by name."""

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
