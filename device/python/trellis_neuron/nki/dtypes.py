"""Element types under NKI's, NumPy's and LibTorch's names."""

import difflib

import numpy as np

from .errors import KernelError


class DType:
    """A type of elements: `name` is the instruction set's word."""

    def __init__(self, name, nki, size, numpy=None):
        self.name, self.nki, self.itemsize = name, nki, size
        self.numpy = None if numpy is None else np.dtype(numpy)

    def __repr__(self):
        return self.nki

    def __eq__(self, other):
        try:
            return find(other) is self
        except (KernelError, TypeError):
            return False

    __hash__ = object.__hash__


ALL = [
    DType("fp32", "float32", 4, np.float32),
    DType("tf32", "tfloat32", 4),
    DType("bf16", "bfloat16", 2),
    DType("fp16", "float16", 2, np.float16),
    DType("fp8e4m3", "float8_e4m3", 1),
    DType("fp8e5m2", "float8_e5m2", 1),
    DType("int32", "int32", 4, np.int32),
    DType("int16", "int16", 2, np.int16),
    DType("int8", "int8", 1, np.int8),
    DType("uint8", "uint8", 1, np.uint8),
    DType("bool", "bool_", 1, np.bool_),
]
BY_WORD = {word: d for d in ALL for word in (d.name, d.nki)}
BY_WORD |= {"bool": BY_WORD["bool_"], "uint32": BY_WORD["int32"], "half": BY_WORD["float16"]}
# Engines work on at most 4 bytes: the host's wide types arrive as fp32 and int32.
BY_WORD |= {"float64": BY_WORD["float32"], "int64": BY_WORD["int32"], "uint16": BY_WORD["int16"]}
FP32, BF16, INT32 = BY_WORD["fp32"], BY_WORD["bf16"], BY_WORD["int32"]


def find(value) -> DType:
    if isinstance(value, DType):
        return value
    word = getattr(value, "__name__", None) or str(value)
    if isinstance(value, np.dtype):
        word = value.name
    word = word.removeprefix("torch.").removeprefix("<class '").removesuffix("'>").split(".")[-1]
    if word in BY_WORD:
        return BY_WORD[word]
    near = difflib.get_close_matches(word, BY_WORD, 1)
    raise KernelError(
        f"dtype {word} is not known{f', the nearest is {near[0]}' if near else ''}: expected one "
        f"of {', '.join(d.nki for d in ALL)}"
    )


def to_bytes(values, dtype: DType) -> bytes:
    """The array's bytes as the core has them."""
    values = np.ascontiguousarray(values)
    if dtype.numpy is not None:
        return values.astype(dtype.numpy).tobytes()
    if dtype is not BF16:
        raise KernelError(f"inputs of {dtype} cannot be made here")
    bits = np.frombuffer(values.astype(np.float32).tobytes(), np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (
        np.where(np.isnan(values.astype(np.float32).ravel()), 0x7FC0, rounded)
        .astype(np.uint16)
        .tobytes()
    )


def from_bytes(data: bytes, dtype: DType, shape):
    if dtype is BF16:
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return np.frombuffer(data, dtype.numpy).reshape(shape)
