"""What goes wrong in a kernel, with the line of its file."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class KernelError(Exception):
    """A kernel that cannot be traced. Its text begins with file and line."""

    def __init__(self, text: str, line: str = "") -> None:
        super().__init__(f"{line or here()}: {text}")


class UnknownName(KernelError, AttributeError):
    """A name that this version of the language does not have."""


class NotAffine(Exception):
    """A loop's counter was used as a plain number: these loops have to be unrolled."""

    def __init__(self, loops, why: str) -> None:
        super().__init__(why)
        self.loops, self.why = frozenset(loops), why


class Retrace(Exception):
    """The trace starts again with other treatments of its loops."""


_own: dict = {}


def _is_own(name) -> bool:
    if name not in _own:
        _own[name] = os.path.dirname(name) == HERE or "<frozen" in name
    return _own[name]


def _frame():
    frame = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_frame():
    """The frame of the kernel that called into this package."""
    return _frame()


def here() -> str:
    """`file.py:12`: where the kernel is."""
    frame = _frame()
    if frame is None:
        return "<kernel>:0"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
