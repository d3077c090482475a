"""What each rank did last, for PyTorch's analyzer of flight records, when a program fails."""

import getpass
import os
import secrets
import sysconfig
import tempfile
import threading
import traceback

import torch

_VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"  # PyTorch's: what the rank's number is added to
_SITES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))


def are_asked_for() -> bool:
    return _VARIABLE in os.environ


def prefix() -> str:
    """Path of a rank's file without its number. In a folder for all users its name is one that no
    other can have made before."""
    folder = f"trellis_flight_recorder_{_user()}_{secrets.token_hex(8)}"
    default = os.path.join(tempfile.gettempdir(), folder, "rank_")
    return os.path.abspath(os.environ.get(_VARIABLE) or default)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name in this container
        return str(os.getuid())


def _is_of_a_library(file: str) -> bool:
    """Not the user's: PyTorch's, ours, and what is between, such as decorators of
    typing_extensions and context managers of Python's own library."""
    is_pythons = file.startswith(_STANDARD) and not file.startswith(_SITES)
    return is_pythons or file.startswith(_LIBRARIES) or file.endswith("/typing_extensions.py")


_STANDARD = (os.path.dirname(threading.__file__) + os.sep, "<frozen ")


def line(stack: traceback.StackSummary) -> str:
    """ "train.py:12 in body: `x.sum()`": the innermost line that is the program's."""
    own = [line for line in stack if not _is_of_a_library(line.filename)] or stack
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: `{own[-1].line}`"


def add_note(error: BaseException, note: str) -> None:
    """Once: a process that makes its default group again names its rank again."""
    if note in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
