"""This process as a rank of a program whose ranks are processes."""

import atexit
import os
import sys
import threading
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import _library, _records

_INTERVAL_S = 0.05
_PATIENCE_S = 10.0  # for other ranks to end, so that what all did can be compared
_HANG = 4  # the exit code of `trellis` too

_worlds: dict[tuple[int, ...], "Rank"] = {}  # by ranks: one, unless the default group is another's
_left: list["Rank"] = []  # of worlds that have ended: what was started in them may be waited for
_hooks: list = []  # of exceptions, before ours
_groups: list[str] = []  # lines that made torch.distributed's groups, members or not


def of(options, members: list[int]) -> "Rank":
    """The rank in the world that has `members`."""
    for ranks, rank in _worlds.items():
        if set(members) <= set(ranks):
            return rank
    if not _worlds:
        _watch_the_program()
    rank = _worlds[tuple(members)] = Rank(options, members)
    return rank


class Rank:
    def __init__(self, options, members: list[int]):
        carrier = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        self.number = members[options.group_rank]
        self._native = torch.classes.trellis.RankProcess(
            str(_library.find()),
            carrier.boxed(),
            members,
            torch.neuron.current_device(),
            len(_left),
            _milliseconds(options.timeout),
            _records.prefix(),
        )
        self._program = threading.get_ident()
        self._failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="rank's place", daemon=True)
        self._thread.start()

    def group(self, axis: str, members: list[int], timeout: timedelta):
        place = _groups[-1] if _groups else "its start"
        return self._native.group(axis, members, _milliseconds(timeout), len(_groups), place)

    def fail(self, text: str) -> None:
        self._failed = True
        self._native.fail(text)

    def leave(self) -> None:
        """Raises what only some ranks did."""
        self._ended.set()
        groups = 0 if self._failed else len(_groups)
        patience = int(_PATIENCE_S * 1000)
        if said := self._native.leave(patience, groups, _groups[-1] if groups else ""):
            print(f"trellis_neuron: {said}", file=sys.stderr)

    def _answer(self) -> None:
        """To other ranks that ask where this one is."""
        while not self._ended.wait(_INTERVAL_S):
            threads = {thread.ident for thread in threading.enumerate()}
            single = threads <= {self._program, threading.get_ident()}
            if self._native.is_asked(single):
                frame = sys._current_frames().get(self._program)
                stack = traceback.extract_stack(frame) if frame else None
                self._native.answer(f", at {_records.line(stack)}" if stack else "")


def _milliseconds(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)


class _World(c10d._World):
    """torch.distributed's state, which notes where groups are made and when the world ends."""

    @property
    def group_count(self) -> int:
        return super().group_count

    @group_count.setter
    def group_count(self, count: int) -> None:
        """torch.distributed counts each group here, those too that the rank is no member of, and
        ends with 0 when it has destroyed the world."""
        c10d._World.group_count.fset(self, count)
        if count > len(_groups):
            _groups.append(_records.line(traceback.extract_stack(sys._getframe(1))))
        if count == 0:
            _leave()


def _leave() -> None:
    ranks = list(_worlds.values())
    _left.extend(ranks)
    _worlds.clear()
    try:
        for rank in ranks:
            rank.leave()
    finally:
        _groups.clear()


def _watch_the_program() -> None:
    """Once: the others learn when this one fails or ends."""
    if _hooks:
        return
    _hooks.append(sys.excepthook)
    sys.excepthook = _fails
    atexit.register(_end)


def _fails(kind, error, trace) -> None:
    for rank in _worlds.values():
        line = _records.line(traceback.extract_tb(trace))
        rank.fail(f"rank {rank.number} ended with {kind.__name__}, at {line}: {error}")
        _records.add_note(error, f"raised by rank {rank.number}")
    _hooks[0](kind, error, trace)


def _end() -> None:
    try:
        _leave()
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_HANG)


def register() -> None:
    c10d._world.__class__ = _World
