"""What a process has once and ranks as threads need each for itself: the environment's variables of
a launcher, attributes of other libraries' classes and modules, and the threads that they start."""

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from ._rank import local

_LAUNCHER = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE".split()


def values() -> dict[Any, Any] | None:
    """Of the calling rank; None outside of run_ranks()."""
    return getattr(local, "values", None)


class Attribute:
    """A class attribute that each rank thread has for itself. begin(value) makes a rank's first
    one from the process's. A rank's None asks again."""

    def __init__(self, value: Any, begin: Callable[[Any], Any]):
        self._value, self._begin = value, begin

    def __get__(self, holder, kind=None):
        mine = values()
        if mine is None:
            return self._value
        if mine.get(self) is None:
            mine[self] = self._begin(self._value)
        return mine[self]

    def __set__(self, holder, value):
        mine = values()
        if mine is None:
            self._value = value
        else:
            mine[self] = value


class _Environment(type(os.environ)):
    """os.environ on rank threads: the variables that a launcher sets are the rank's own."""

    def _of(self, key) -> dict[str, str] | None:
        mine = values()
        return mine[_Environment] if mine is not None and key in _LAUNCHER else None

    def __getitem__(self, key):
        own = self._of(key)
        return super().__getitem__(key) if own is None else own[key]

    def __setitem__(self, key, value):
        own = self._of(key)
        if own is None:
            super().__setitem__(key, value)
        else:
            own[key] = value

    def __delitem__(self, key):
        own = self._of(key)
        if own is None:
            super().__delitem__(key)
        else:
            del own[key]

    def __iter__(self):
        if (mine := values()) is not None:
            yield from list(mine[_Environment])
        yield from (key for key in super().__iter__() if self._of(key) is None)

    def __len__(self):
        return sum(1 for _ in self)


def _be(identity: dict[str, Any]) -> None:
    """C++ finds the calling thread's groups by name from here on, Python its world and rank."""
    vars(local).clear()
    vars(local).update(identity)
    torch._C._distributed_c10d._unregister_all_process_groups()
    if (world := identity.get("world")) is not None:
        torch._C._accelerator_setDeviceIndex(identity["rank"])
        for group in world.pg_map:
            torch._C._distributed_c10d._register_process_group(group.group_name, group)


@contextlib.contextmanager
def _as_rank(identity: dict[str, Any] | None):
    """The calling thread acts for the rank whose `local` was `identity`; None: it stays what it
    is."""
    if identity is None:
        yield
        return
    before = dict(vars(local))
    _be(identity)
    try:
        yield
    finally:
        _be(before)


def _identity() -> dict[str, Any] | None:
    return dict(vars(local)) if values() is not None else None


class Threads:
    """While ranks run, os.environ is of each (the object stays, because modules hold it), and
    a thread that a rank starts, or a job that it gives to a pool of threads, acts for it."""

    def __enter__(self):
        self._kind = type(os.environ)
        os.environ.__class__ = _Environment
        self._start = threading.Thread.start
        self._submit = concurrent.futures.ThreadPoolExecutor.submit
        threading.Thread.start = self._started_by_rank(self._start)
        concurrent.futures.ThreadPoolExecutor.submit = self._given_by_rank(self._submit)

    def __exit__(self, *_):
        concurrent.futures.ThreadPoolExecutor.submit = self._submit
        threading.Thread.start = self._start
        os.environ.__class__ = self._kind

    @staticmethod
    def _started_by_rank(start):
        def start_as_rank(thread):
            if (identity := _identity()) is not None:
                run = thread.run

                def run_as_rank():
                    with _as_rank(identity):
                        run()

                thread.run = run_as_rank
            start(thread)

        return start_as_rank

    @staticmethod
    def _given_by_rank(submit):
        def submit_as_rank(pool, function, /, *args, **kwargs):
            identity = _identity()

            def job():
                with _as_rank(identity):
                    return function(*args, **kwargs)

            return submit(pool, job)

        return submit_as_rank


def begin(rank: int, size: int) -> None:
    """The calling thread is a rank from here on, as torchrun would have started it on one host."""
    own = dict(zip(_LAUNCHER, map(str, (rank, rank, size, size, 0, 1))))
    local.values = {_Environment: own}


def end() -> None:
    local.values = None
