"""`nki.compiler`: what a kernel says to the compiler. Addresses that it chooses are not followed:
tiles are placed by how long they are alive."""

import contextlib


class Allocated:
    """A buffer of SBUF or PSUM, wherever the kernel wants it."""

    def __init__(self, word):
        self.word = word


class _Memory:
    def __init__(self, word):
        self.word = word

    def alloc(self, *_args, **_options):
        return Allocated(self.word)

    mod_alloc = auto_alloc = alloc


sbuf, psum = _Memory("sbuf"), _Memory("psum")


def _unchanged(function=None, *_args, **_options):
    return function if function is not None else _unchanged


skip_middle_end_transformations = enable_stack_allocator = force_auto_alloc = _unchanged


def no_reorder(*_args, **_options):
    return contextlib.nullcontext()
