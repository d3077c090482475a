"""Which rank the calling thread is."""

import threading

local = threading.local()


def current() -> int | None:
    """None outside of run_ranks()."""
    return getattr(local, "rank", None)
