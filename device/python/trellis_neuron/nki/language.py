"""`nki.language`: tiles, loops and functions of tiles, as documented for the tile dialect."""

import difflib
import math

import numpy as np

from . import dtypes
from . import operations as ops
from .affine import Expr, Mask, arange, broadcast_shapes, mgrid
from .errors import KernelError, NotAffine, UnknownName
from .tensors import DynamicSlice, ParDim, Storage, Tensor, new
from .tracing import Trace, affine_range, sequential_range, static_range

__all__ = ["affine_range", "arange", "mgrid", "sequential_range", "static_range"]

sbuf, psum, hbm, shared_hbm, private_hbm = "sbuf", "psum", "hbm", "shared_hbm", "private_hbm"
par_dim = ParDim
for _dtype in dtypes.ALL:
    globals()[_dtype.nki] = _dtype


class tile_size:
    pmax = 128
    psum_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512


class spmd_dim(int):
    """An axis of a launch grid that is shared by cores: one core goes through all of it here."""

    def __new__(cls, *counts):
        return super().__new__(cls, math.prod(counts))


def nc(count):
    return count


def ds(start, size):
    return DynamicSlice(start, size)


def _space(buffer):
    word = getattr(buffer, "word", buffer)
    if word in (None, "sbuf"):
        return "sbuf", "tile"
    if word == "psum":
        return "psum", "tile"
    if word in ("hbm", "private_hbm", "shared_hbm"):
        return "hbm", "scratch"
    raise KernelError(f"buffer {buffer!r}: expected nl.sbuf, nl.psum, nl.hbm or nl.shared_hbm")


def ndarray(shape, dtype=None, *, buffer=None, name="", **_options):
    space, kind = _space(buffer)
    return new(shape, dtype if dtype is not None else dtypes.FP32, space, kind, name)


def _filled(shape, value, dtype, buffer, name=""):
    out = ndarray(shape, dtype, buffer=buffer, name=name)
    if out.space == "hbm":
        raise KernelError("nl.zeros and nl.full in HBM: store a tile there")
    out.storage.fill = float(value)
    return out


def zeros(shape, dtype=None, *, buffer=None, name="", **_options):
    return _filled(shape, 0, dtype, buffer, name)


def ones(shape, dtype=None, *, buffer=None, name="", **_options):
    return _filled(shape, 1, dtype, buffer, name)


def full(shape, fill_value, dtype=None, *, buffer=None, name="", **_options):
    return _filled(shape, fill_value, dtype, buffer, name)


def zeros_like(x, dtype=None, *, buffer=None, **_options):
    return _filled(x.shape, 0, dtype or x.dtype, buffer or x.space)


def empty_like(x, dtype=None, *, buffer=None, **_options):
    return ndarray(x.shape, dtype or x.dtype, buffer=buffer or x.space)


def shared_constant(values, dtype=None):
    values = np.asarray(values)
    found = dtypes.find(dtype if dtype is not None else values.dtype)
    storage = Storage("hbm", values.shape, found, "const")
    storage.data = values
    storage.identity = values.ndim == 2 and np.array_equal(values, np.eye(*values.shape))
    return Tensor.whole(storage)


def shared_identity_matrix(n, dtype=None):
    return shared_constant(np.identity(n), dtype or dtypes.FP32)


def program_id(axis):
    return Trace.now().program_id(axis)


def num_programs(axes=None):
    grid = Trace.now().grid
    return grid[axes] if isinstance(axes, int) else math.prod(grid)


def program_ndim():
    return len(Trace.now().grid)


# --- memory -------------------------------------------------------------------------------------


def load(src, *, mask=None, dtype=None, **_options):
    _must_be(src, "nl.load", "hbm")
    out = ops.transferred(src, None, dtype, mask)
    root = src.storage.base or src.storage
    out.storage.identity = root.identity and src.shape == root.shape
    return out


def store(dst, value=None, *, mask=None, **_options):
    _must_be(dst, "nl.store", "hbm")
    if ops.is_number(value):
        part = new(dst.shape, dst.dtype, "sbuf")
        ops.filled(part, value)
        value = part
    source = ops.tile(value)
    target = ops.tile(dst)
    lanes = source.shape[0] == 1 and target.shape[0] > 1
    if lanes:
        source = ops.spread(source, target.shape[0])
    if ops.free_size(source) == 1 and ops.free_size(target) > 1:
        source = ops.aligned([source, target])[0].broadcast_to(target.shape)
    source = ops.fitted(source, target.shape)
    ops.transferred(source, target, None, mask)


def load_transpose2d(src, *, mask=None, dtype=None, **_options):
    _must_be(src, "nl.load_transpose2d", "hbm")
    from . import isa

    out = isa.dma_transpose(None, src, mask=mask)
    return out if dtype is None or dtypes.find(dtype) is out.dtype else ops.copied(out, dtype=dtype)


def copy(x, *, mask=None, dtype=None, **_options):
    return ops.copied(x, dtype=dtype, mask=mask)


def _must_be(x, what, space):
    if not isinstance(x, Tensor):
        raise KernelError(f"{what} takes a tensor, got {type(x).__name__}")
    if x.space != space:
        raise KernelError(f"{what} takes a tensor in {space}, got one in {x.space}")


# --- functions of tiles -------------------------------------------------------------------------

REVERSED = {"subtract": "reverse_subtract"}
SWAPPED = {
    "greater": "less",
    "greater_equal": "less_equal",
    "less": "greater",
    "less_equal": "greater_equal",
}
COMPARISONS = {"equal", "not_equal", *SWAPPED}


def _result(op, dtype, *tiles):
    if dtype is not None:
        return dtypes.find(dtype)
    if op in COMPARISONS:
        return dtypes.find("uint8")
    kinds = [t.dtype for t in tiles]
    if any(k is dtypes.FP32 for k in kinds):
        return dtypes.FP32
    floats = [k for k in kinds if k.name.startswith(("fp", "bf"))]
    return (floats or kinds)[0]


def _with_number(op, a, b, out, dtype, mask, engine):
    """A tile and a number, in either order."""
    first = ops.is_number(a)
    view, number = (b, a) if first else (a, b)
    view = ops.tile(view)
    if first and op in ("divide", "power"):
        if op == "power":
            raise KernelError("a number to the power of a tile")
        inverse = activate("reciprocal", view, dtype=dtypes.FP32, mask=mask)
        return binary("multiply", inverse, float(number), out, dtype, mask)
    alu = {**REVERSED, **SWAPPED}.get(op, op) if first else op
    result = _result(op, dtype, view)
    return ops.emit(
        "tensor_scalar",
        engine,
        out,
        view.shape,
        result,
        mask,
        {"src0": view},
        alu=alu,
        imm0=float(number),
    )


def binary(op, a, b, out=None, dtype=None, mask=None, engine="vector"):
    """a op b, tile by tile or with numbers."""
    for x in (a, b):
        if isinstance(x, (Expr, Mask)):
            loops = x.loops if isinstance(x, Expr) else {k for t in x.terms for k in t.loops}
            raise NotAffine(loops, "an index among the values of a tile")
    if ops.is_number(a) or ops.is_number(b):
        return _with_number(op, a, b, out, dtype, mask, engine)
    a, b = ops.aligned([ops.tile(a), ops.tile(b)])
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = ops.on_lanes(a, shape[0]), ops.on_lanes(b, shape[0])
    result = _result(op, dtype, a, b)
    one_column = [ops.free_size(x) == 1 for x in (a, b)]
    if (
        any(one_column)
        and not all(one_column)
        and not (one_column[0] and op in ("divide", "power"))
    ):
        view, column = (b, a) if one_column[0] else (a, b)
        alu = {**REVERSED, **SWAPPED}.get(op, op) if one_column[0] else op
        column = column if column.space == "sbuf" else ops.copied(column)
        column = ops.aligned([ops.tile(column), view])[0]
        sources = {"src0": view, "src1": column}
        return ops.emit("tensor_scalar", engine, out, shape, result, mask, sources, alu=alu)
    sources = {"src0": a.broadcast_to(shape), "src1": b.broadcast_to(shape)}
    return ops.emit("tensor_tensor", engine, out, shape, result, mask, sources, alu=op)


def activate(fn, x, bias=None, scale=1.0, out=None, dtype=None, mask=None, engine="scalar"):
    """fn(scale · x + bias)."""
    view = ops.tile(x)
    if fn == "reciprocal" and ops.free_size(view) >= SCALAR_RECIPROCAL:
        engine = "scalar"
    if isinstance(scale, Tensor):
        view = ops.tile(binary("multiply", view, scale, mask=mask, dtype=dtypes.FP32))
        scale = 1.0
    sources, imm1 = {"src0": view}, 0.0
    if isinstance(bias, Tensor):
        column = ops.on_lanes(ops.tile(bias), view.shape[0])
        if ops.free_size(column) != 1:
            raise KernelError(f"a bias of {list(bias.shape)}: one number a partition is expected")
        column = column if column.space == "sbuf" else ops.tile(ops.copied(column))
        sources["src1"] = ops.aligned([column.squeezed(1)[:, None], view])[0]
    elif bias is not None:
        imm1 = float(bias)
    return ops.emit(
        "activation",
        engine,
        out,
        view.shape,
        dtypes.find(dtype) if dtype is not None else _result("", None, view),
        mask,
        sources,
        activation=fn,
        imm0=float(scale),
        imm1=imm1,
    )


def _binary_function(name, alu):
    def function(x, y, *, dtype=None, mask=None, **_options):
        return binary(alu, x, y, dtype=dtype, mask=mask)

    function.__name__ = function.__qualname__ = name
    return function


BINARY = {
    **{n: n for n in ("add", "subtract", "multiply", "divide", "power", *COMPARISONS)},
    "maximum": "max",
    "minimum": "min",
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}
for _name, _alu in BINARY.items():
    globals()[_name] = _binary_function(_name, _alu)

UNARY = {
    **{n: n for n in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "silu", "tanh")},
    **{n: n for n in ("gelu", "relu", "sin", "cos", "square", "abs", "sign", "erf")},
    "negative": "neg",
    "silu_dx": "silu_grad",
    "gelu_dx": "gelu_grad",
}
ON_VECTOR = ("reciprocal",)
# Elements a partition from which on the Scalar engine is faster: Vector takes 6 to 8 passes. A
# profile of a published SiLU kernel (4096 × 7168, fp32, Trn1) has two functions a tile there.
SCALAR_RECIPROCAL = 64


def _unary_function(name, fn):
    def function(x, *, dtype=None, mask=None, **_options):
        if ops.is_number(x):
            raise KernelError(f"nl.{name} of a number: use math")
        engine = "vector" if fn in ON_VECTOR else "scalar"
        return activate(fn, x, dtype=dtype, mask=mask, engine=engine)

    function.__name__ = function.__qualname__ = name
    return function


for _name, _fn in UNARY.items():
    globals()[_name] = _unary_function(_name, _fn)


def where(condition, x, y, *, dtype=None, mask=None, **_options):
    """x where the condition is not 0, else y."""
    if isinstance(condition, Mask):
        raise KernelError("nl.where of indices: nisa.affine_select")
    no = binary("equal", condition, 0.0, mask=mask)
    parts = [_selected(condition, x, mask), _selected(no, y, mask)]
    return binary("add", *parts, dtype=dtype, mask=mask)


def _selected(condition, x, mask):
    if ops.is_number(x):
        return binary("multiply", condition, float(x), dtype=dtypes.FP32, mask=mask)
    a, c = ops.aligned([ops.tile(x), ops.tile(condition)])
    shape = broadcast_shapes(a.shape, c.shape)
    sources = {"src0": a.broadcast_to(shape), "src1": c.broadcast_to(shape)}
    return ops.emit("select", "vector", None, shape, x.dtype, mask, sources)


def fmod(*_args, **_options):
    raise KernelError("nl.fmod is not supported")


# --- reductions ---------------------------------------------------------------------------------


def reduce(alu, x, axis, out=None, dtype=None, mask=None, keepdims=False, engine="vector"):
    """Along free axes; what is left is [P, …], or [P, 1]."""
    view = ops.tile(x)
    axes = [axis] if isinstance(axis, int) else list(axis)
    axes = sorted({a % view.ndim for a in axes})
    if 0 in axes:
        raise KernelError("a reduction over the partitions: transpose, or multiply with ones")
    kept = [a for a in range(1, view.ndim) if a not in axes]
    clip = ops.clip_of(mask, view.shape)
    if clip == ():
        raise KernelError("its mask selects nothing")
    valid = ops.with_valid(clip, [view], view.shape)
    source = view.clipped(valid).permute(0, *kept, *axes)
    shape = tuple(source.shape[: 1 + len(kept)]) + (() if kept else (1,))
    lanes = view.shape[0]
    full = (lanes, *(view.shape[a] for a in kept)) + (() if kept else (1,))
    result = ops.fresh(full, dtype or view.dtype) if out is None else out
    dst = result if out is None else ops.fitted(ops.tile(out), full)
    cut = [(0, n) for n in shape] if valid is None else [valid[0], *(valid[a] for a in kept)]
    cut = cut + [(0, 1)] * (len(full) - len(cut))
    clip = None if all(c == (0, n) for c, n in zip(cut, full)) else cut
    made = ops.record(
        "tensor_reduce", engine, dst=dst.clipped(clip), src0=source, alu=alu, clip=clip
    )
    ops.mark_written(dst)
    if out is None:
        result.producer, result.storage.valid = made, clip
    if keepdims and kept and out is None:
        keys = tuple(None if a in axes else slice(None) for a in range(view.ndim))
        return result[keys]
    return result


def sum(x, axis, *, dtype=None, mask=None, keepdims=False, **_options):
    return reduce("add", x, axis, None, dtype, mask, keepdims)


def max(x, axis, *, dtype=None, mask=None, keepdims=False, **_options):
    return reduce("max", x, axis, None, dtype, mask, keepdims)


def min(x, axis, *, dtype=None, mask=None, keepdims=False, **_options):
    return reduce("min", x, axis, None, dtype, mask, keepdims)


def prod(x, axis, *, dtype=None, mask=None, keepdims=False, **_options):
    return reduce("multiply", x, axis, None, dtype, mask, keepdims)


def _count(x, axis):
    shape = ops.tile(x).shape
    axes = [axis] if isinstance(axis, int) else axis
    return math.prod(shape[a % len(shape)] for a in axes)


def mean(x, axis, *, dtype=None, mask=None, keepdims=False, **_options):
    total = reduce("add", x, axis, None, dtypes.FP32, mask, keepdims)
    return binary("multiply", total, 1.0 / _count(x, axis), dtype=dtype or x.dtype)


def var(x, axis, *, dtype=None, mask=None, **_options):
    centre = binary("subtract", x, mean(x, axis, dtype=dtypes.FP32), mask=mask, dtype=dtypes.FP32)
    return mean(activate("square", centre), axis, dtype=dtype or x.dtype)


def softmax(x, axis, *, dtype=None, mask=None, **_options):
    top = reduce("max", x, axis, None, dtypes.FP32, mask)
    powers = activate("exp", binary("subtract", x, top, mask=mask, dtype=dtypes.FP32))
    total = reduce("add", powers, axis, None, dtypes.FP32)
    inverse = activate("reciprocal", total, engine="vector")
    return binary("multiply", powers, inverse, dtype=dtype or x.dtype)


def rms_norm(x, w, axis, n, epsilon=1e-6, *, dtype=None, mask=None, **_options):
    squares = reduce("add", activate("square", x, dtype=dtypes.FP32), axis, None, dtypes.FP32, mask)
    inverse = activate("rsqrt", binary("add", binary("multiply", squares, 1.0 / n), epsilon))
    return binary("multiply", binary("multiply", x, inverse), w, dtype=dtype or x.dtype)


def loop_reduce(x, op, loop_indices, *, dtype=None, mask=None, **_options):
    from . import isa

    if mask not in (None, True):
        raise KernelError("nl.loop_reduce with a mask")
    loops = {k for index in loop_indices if isinstance(index, Expr) for k in index.loops}
    return ops.LoopReduce(x, isa.alu(op), loops)


# --- products -----------------------------------------------------------------------------------


def transpose(x, *, dtype=None, mask=None, **_options):
    from . import isa

    out = isa.nc_transpose(x, mask=mask)
    return ops.copied(out, dtype=dtype)


def matmul(x, y, *, transpose_x=False, mask=None, **_options):
    from . import isa

    x = x if transpose_x else transpose(x)
    return isa.nc_matmul(x, y, mask=mask)


def broadcast_to(x, *, shape, **_options):
    return x.broadcast_to(shape)


def expand_dims(x, axis):
    return x.expand_dims(axis)


def device_print(*_args, **_options):
    """Prints on a device; a trace has no values."""


def no_reorder(*_args, **_options):
    import contextlib

    return contextlib.nullcontext()


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    near = difflib.get_close_matches(name, globals(), 1)
    raise UnknownName(
        f"nki.language.{name} is not supported{f', the nearest is {near[0]}' if near else ''}"
    )
