"""What each rank did last, for PyTorch's analyzer of flight records, when a program fails."""

import atexit
import os
import sys
import tempfile
import threading
import time
import traceback

import torch

_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"  # PyTorch's: what the rank's number is added to
_LIBRARIES = tuple(
    os.path.dirname(file) + os.sep for file in (torch.__file__, __file__, threading.__file__)
)
_INTERVAL_S = 0.1
_PATIENCE_S = 1.5  # for other ranks to say where they are


def are_asked_for() -> bool:
    return _VARIABLE in os.environ


def prefix() -> str:
    """Path of a rank's file without its number."""
    folder = f"trellis_flight_recorder_{os.getpid()}"
    default = os.path.join(tempfile.gettempdir(), folder, "rank_")
    return os.path.abspath(os.environ.get(_VARIABLE) or default)


def line(stack: traceback.StackSummary) -> str:
    """ "train.py:12 in body: `x.sum()`": the innermost line that is neither PyTorch's nor ours."""
    own = [line for line in stack if not line.filename.startswith(_LIBRARIES)] or stack
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: `{own[-1].line}`"


def add_note(error: BaseException, note: str) -> None:
    """Once: a process that makes its default group again names its rank again."""
    if note in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def _name_rank(rank: int) -> None:
    """The error that ends this process says whose it is: the output of several is one text."""
    hook = sys.excepthook

    def with_rank(kind, error, trace):
        add_note(error, f"raised by rank {rank}")
        hook(kind, error, trace)

    sys.excepthook = with_rank


class OfProcess:
    """This process as a rank. A thread watches whether a communication failed here, or another rank
    says that one did: then every rank writes its file and says where it is."""

    def __init__(self, store, rank: int, size: int):
        self.native = torch.classes.trellis.RankProcess(rank)
        self._store, self._rank, self._size = store.clone(), rank, size
        _name_rank(rank)
        self._main = threading.get_ident()
        mine = f"{time.time_ns()} {prefix()}"
        begin = self._store.compare_set("trellis_records", "", mine).decode()
        origin, self._prefix = begin.split(" ", 1)  # as the first rank has them
        self._origin, self._written = int(origin), ""
        self.native.watch(self._prefix, self._origin)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="records", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        self._ended.set()
        self._thread.join(2.0)

    def _watch(self) -> None:
        try:
            while not self._ended.wait(_INTERVAL_S):
                if self.native.question():
                    self._store.set("trellis_records/over", "1")
                    self._say_where()
                    return self.native.answer(self._places() + self._written)
                if not self._written and self._store.check(["trellis_records/over"]):
                    self._say_where()
        except RuntimeError:  # the store ends with the process that serves it
            self.native.answer(self._written or self.native.write(self._prefix, self._origin))

    def _say_where(self) -> None:
        if self._written:
            return
        frame = sys._current_frames().get(self._main)
        place = "" if frame is None else f", at {line(traceback.extract_stack(frame))}"
        where = self.native.whereabouts() + place
        self._store.set(f"trellis_records/{self._rank}", where)
        self._written = self.native.write(self._prefix, self._origin)

    def _places(self) -> str:
        deadline, text = time.monotonic() + _PATIENCE_S, ""
        for rank in range(self._size):
            key = f"trellis_records/{rank}"
            while not (there := self._store.check([key])) and time.monotonic() < deadline:
                time.sleep(0.02)
            where = self._store.get(key).decode() if there else "does not answer"
            text += f"  rank {rank} {where}\n"
        return text
