"""`nki.isa`: one instruction each, in both forms: with a result (tile dialect), and with `dst=`
(0.3 to 0.6)."""

import difflib

from . import dtypes
from . import language as nl
from . import operations as ops
from .affine import Expr, Mask, broadcast_shapes
from .errors import KernelError, NotAffine, UnknownName
from .tensors import Tensor
from .tracing import Trace


class Engine:
    def __init__(self, word):
        self.word = word

    def __repr__(self):
        return f"{self.word}_engine"


unknown_engine = Engine("")
tensor_engine, vector_engine = Engine("tensor"), Engine("vector")
scalar_engine, gpsimd_engine = Engine("scalar"), Engine("gpsimd")
dma_engine = Engine("sync")


class engine:
    unknown, tensor, vector = unknown_engine, tensor_engine, vector_engine
    scalar, gpsimd, dma = scalar_engine, gpsimd_engine, dma_engine


class reduce_cmd:
    """Whether a sum of rows begins anew or goes on."""

    idle, reset, reduce, reset_reduce, load_reduce = "idle", "reset", "reduce", "reset_reduce", ""


class nc_version:
    gen1, gen2, gen3, gen4 = 1, 2, 3, 4


def get_nc_version():
    return nc_version.gen2


ALU = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "divide": "divide",
    "true_divide": "divide",
    "max": "max",
    "maximum": "max",
    "amax": "max",
    "min": "min",
    "minimum": "min",
    "amin": "min",
    "power": "power",
    "pow": "power",
    "sum": "add",
    "prod": "multiply",
    "equal": "equal",
    "not_equal": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "less": "less",
    "less_equal": "less_equal",
    "logical_and": "and",
    "bitwise_and": "and",
    "logical_or": "or",
    "bitwise_or": "or",
    "logical_xor": "xor",
    "bitwise_xor": "xor",
    "bypass": "bypass",
}


def alu(op) -> str:
    word = getattr(op, "__name__", str(op))
    if word in ALU:
        return ALU[word]
    near = difflib.get_close_matches(word, ALU, 1)
    raise KernelError(
        f"op {word} is no arithmetic of the engines{f', the nearest is {near[0]}' if near else ''}"
    )


FUNCTIONS = {**nl.UNARY, "copy": "identity", "identity": "identity", "absolute": "abs"}


def function_of(op) -> str:
    word = getattr(op, "__name__", str(op))
    if word in FUNCTIONS:
        return FUNCTIONS[word]
    near = difflib.get_close_matches(word, FUNCTIONS, 1)
    raise KernelError(
        f"activation {word} is not supported{f', the nearest is {near[0]}' if near else ''}"
    )


def _word(engine, default):
    return getattr(engine, "word", None) or default


def _out(dst, dtype):
    """A tile to write, and the dtype of a fresh one."""
    if dst is not None and not isinstance(dst, Tensor):
        raise KernelError(f"dst= takes a tile, got {type(dst).__name__}")
    return dst


def bypass(*_args):
    raise KernelError("nki.isa.bypass is an op of instructions")


# --- data -----------------------------------------------------------------------------------------


def dma_copy(dst=None, src=None, *, mask=None, dst_rmw_op=None, oob_mode=None, engine=None, **_o):
    if dst_rmw_op is not None:
        raise KernelError("dma_copy with dst_rmw_op is not supported")
    if dst is None or src is None:
        raise KernelError("dma_copy needs dst= and src=")
    target, source = ops.tile(dst), ops.tile(src)
    if target.shape != source.shape and source.size == target.size:
        if target.squeezed(1).shape == source.squeezed(1).shape:
            source = ops.fitted(source, target.shape)
    ops.transferred(source, target, None, mask, _word(engine, None))
    return dst


def dma_transpose(dst=None, src=None, *, mask=None, axes=None, **_options):
    if axes not in (None, (1, 0), [1, 0]):
        raise KernelError(f"dma_transpose of axes {axes}: (1, 0) is supported")
    source = ops.tile(src)
    clip = ops.clip_of(mask, source.shape)
    source = source.clipped(clip)
    if source.ndim != 2:
        raise KernelError(f"dma_transpose of {list(source.shape)}: two axes are expected")
    out = dst
    shape = (source.shape[1], source.shape[0])
    return ops.emit("dma_transpose", "", out, shape, source.dtype, None, {"src0": source})


def memset(dst=None, value=0, *args, shape=None, dtype=None, mask=None, engine=None, **_options):
    word = _word(engine, "vector")
    if isinstance(dst, Tensor):
        return ops.filled(dst, value, mask, word)
    shape = shape if shape is not None else dst
    dtype = dtype if dtype is not None else (args[0] if args else dtypes.FP32)
    out = nl.ndarray(shape, dtype, buffer="sbuf")
    view = ops.tile(out)
    sources: dict = {}
    return ops.emit("memset", word, None, view.shape, out.dtype, mask, sources, imm0=float(value))


def iota(expr=None, dtype=None, *, dst=None, pattern=None, mask=None, **_options):
    if not isinstance(expr, Expr):
        raise KernelError("iota takes an index, such as nl.arange(128)[:, None]; patterns do not")
    if expr.loops:
        raise NotAffine(expr.loops, "an iota")
    if expr.ndim != 2:
        raise KernelError(f"iota of {expr.ndim} axes: two are expected")
    dtype = dtypes.find(dtype if dtype is not None else dtypes.INT32)
    lanes, columns = expr.shape
    along = expr.coefs[1] if columns > 1 else 0
    start = {"imm0": float(expr.const), "imm1": float(expr.coefs[0] if columns == 1 else along)}
    if columns == 1 or expr.coefs[0] == along * columns or lanes == 1:
        return ops.emit("iota", "gpsimd", dst, expr.shape, dtype, mask, {}, **start)
    row = ops.emit(
        "iota", "gpsimd", None, expr.shape, dtypes.FP32, None, {}, imm0=0.0, imm1=float(along)
    )
    step = float(expr.coefs[0] - along * columns)
    first = ops.emit(
        "iota", "gpsimd", None, (lanes, 1), dtypes.FP32, None, {}, imm0=float(expr.const), imm1=step
    )
    return nl.binary("add", row, first, dst, dtype, mask)


def tensor_copy(dst=None, src=None, *, dtype=None, mask=None, engine=None, **_options):
    if src is None:
        dst, src = None, dst
    word = _word(engine, None)
    return ops.copied(src, _out(dst, dtype), dtype, mask, word)


# --- arithmetic -----------------------------------------------------------------------------------


def tensor_tensor(*args, dst=None, data1=None, data2=None, op=None, dtype=None, mask=None,
                  engine=None, **_options):  # fmt: skip
    names = ["data1", "data2", "op"] if len(args) + (data1 is not None) < 3 or (
        len(args) == 3 and not isinstance(args[2], Tensor)
    ) else ["dst", "data1", "data2", "op"]  # fmt: skip
    given = dict(zip(names, args))
    dst, data1 = given.get("dst", dst), given.get("data1", data1)
    data2, op = given.get("data2", data2), given.get("op", op)
    word = _word(engine, "vector")
    a, b = ops.aligned([ops.tile(data1), ops.tile(data2)])
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = ops.on_lanes(a, shape[0]), ops.on_lanes(b, shape[0])
    sources = {"src0": a.broadcast_to(shape), "src1": b.broadcast_to(shape)}
    result = nl._result(alu(op), dtype, a, b)
    return ops.emit("tensor_tensor", word, dst, shape, result, mask, sources, alu=alu(op))


def _stage(view, op, operand, reverse, out, dtype, mask, word):
    """One operation of a tensor_scalar by itself."""
    name = alu(op)
    if reverse:
        if name == "divide":
            if ops.is_number(operand):
                return nl.binary("divide", operand, view, out, dtype, mask)
            view = nl.activate("reciprocal", view, dtype=dtypes.FP32, mask=mask, engine="vector")
            name = "multiply"
        name = {**nl.REVERSED, **nl.SWAPPED}.get(name, name)
    sources, fields = {"src0": view}, {"alu": name}
    if ops.is_number(operand):
        fields["imm0"] = float(operand)
    else:
        sources["src1"] = _column(operand, view)
    result = nl._result(name, dtype, view)
    return ops.emit("tensor_scalar", word, out, view.shape, result, mask, sources, **fields)


def _column(operand, view):
    if not isinstance(operand, Tensor):
        raise KernelError(f"an operand of {type(operand).__name__}: a number or a tile is expected")
    column = ops.on_lanes(ops.tile(operand), view.shape[0])
    if ops.free_size(column) != 1:
        raise KernelError(
            f"an operand of {list(operand.shape)}: one number a partition is expected"
        )
    if column.space != "sbuf":
        column = ops.tile(ops.copied(column))
    return ops.aligned([column.squeezed(1)[:, None], view])[0]


def tensor_scalar(dst=None, data=None, op0=None, operand0=None, reverse0=False, op1=None,
                  operand1=None, reverse1=False, *, dtype=None, mask=None, engine=None,
                  **_options):  # fmt: skip
    if not isinstance(data, Tensor):  # the tile dialect's order
        dst, data, op0, operand0 = None, dst if data is None else dst, op0, operand0
        if data is None:
            raise KernelError("tensor_scalar needs data=")
    word = _word(engine, "vector")
    view = ops.tile(data)
    if op1 is None:
        return _stage(view, op0, operand0, reverse0, _out(dst, dtype), dtype, mask, word)
    one_each = ops.is_number(operand1) and not (reverse0 and alu(op0) == "divide")
    if not one_each or (reverse1 and alu(op1) == "divide"):
        first = ops.tile(_stage(view, op0, operand0, reverse0, None, dtypes.FP32, mask, word))
        return _stage(
            first, op1, operand1, reverse1, _out(dst, dtype), dtype or data.dtype, mask, word
        )
    names = [alu(op0), alu(op1)]
    swap = {**nl.REVERSED, **nl.SWAPPED}
    names = [swap.get(n, n) if r else n for n, r in zip(names, (reverse0, reverse1))]
    sources = {"src0": view}
    fields = {"alu": names[0], "alu2": names[1], "imm1": float(operand1)}
    if ops.is_number(operand0):
        fields["imm0"] = float(operand0)
    else:
        sources["src1"] = _column(operand0, view)
    result = nl._result(names[1], dtype, view)
    return ops.emit("tensor_scalar", word, dst, view.shape, result, mask, sources, **fields)


def scalar_tensor_tensor(dst=None, data=None, op0=None, operand0=None, op1=None, operand1=None, *,
                         reverse0=False, reverse1=False, dtype=None, mask=None,
                         **_options):  # fmt: skip
    view = ops.tile(data)
    names = [alu(op0), alu(op1)]
    swap = {**nl.REVERSED, **nl.SWAPPED}
    names = [swap.get(n, n) if r else n for n, r in zip(names, (reverse0, reverse1))]
    if not ops.is_number(operand0):
        first = _stage(view, op0, operand0, reverse0, None, dtypes.FP32, mask, "vector")
        a, b = (operand1, first) if reverse1 else (first, operand1)
        return tensor_tensor(
            dst=dst, data1=a, data2=b, op=op1, dtype=dtype or data.dtype, mask=mask
        )
    other = ops.aligned([ops.on_lanes(ops.tile(operand1), view.shape[0]), view])[0]
    sources = {"src0": view, "src1": other.broadcast_to(view.shape)}
    result = nl._result(names[1], dtype, view, other)
    return ops.emit(
        "scalar_tensor_tensor", "vector", dst, view.shape, result, mask, sources,
        alu=names[0], alu2=names[1], imm0=float(operand0),
    )  # fmt: skip


def tensor_reduce(*args, dst=None, op=None, data=None, axis=None, dtype=None, mask=None,
                  negate=False, keepdims=False, engine=None, **_options):  # fmt: skip
    names = ["dst", "op", "data", "axis"] if args and isinstance(args[0], Tensor) else [
        "op", "data", "axis"
    ]  # fmt: skip
    given = dict(zip(names, args))
    dst, op = given.get("dst", dst), given.get("op", op)
    data, axis = given.get("data", data), given.get("axis", axis)
    word = _word(engine, "vector")
    out = nl.reduce(alu(op), data, axis, None if negate else dst, dtype, mask, keepdims, word)
    if not negate:
        return out
    view = ops.tile(out)
    return ops.emit(
        "tensor_scalar", "vector", dst, view.shape, out.dtype, None, {"src0": view},
        alu="multiply", imm0=-1.0,
    )  # fmt: skip


def tensor_tensor_scan(*args, dst=None, data0=None, data1=None, initial=0, op0=None, op1=None,
                       dtype=None, mask=None, reverse0=False, reverse1=False,
                       **_options):  # fmt: skip
    tiles = [a for a in args if isinstance(a, Tensor)]
    rest = list(args[len(tiles) :])
    order = ["dst", "data0", "data1"] if len(tiles) == 3 and not rest else ["data0", "data1"]
    if len(tiles) == 3 and order == ["data0", "data1"]:
        rest.insert(0, tiles.pop())
    if len(tiles) == 3:
        dst, data0, data1 = tiles
    elif len(tiles) == 2:
        data0, data1 = tiles
    initial, op0, op1 = (rest + [initial, op0, op1][len(rest) :])[:3]
    if reverse0 or reverse1:
        raise KernelError("tensor_tensor_scan with reversed operands is not supported")
    a, b = ops.aligned([ops.tile(data0), ops.tile(data1)])
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = ops.on_lanes(a, shape[0]), ops.on_lanes(b, shape[0])
    result = nl._result(alu(op1), dtype, a, b)
    fields = {"alu": alu(op0), "alu2": alu(op1)}
    sources = {"src0": a.broadcast_to(shape), "src1": b.broadcast_to(shape)}
    if ops.is_number(initial):
        fields["imm0"] = float(initial)
    else:
        sources["src1"] = _with_start(sources, initial, fields, mask)
    return ops.emit("tensor_tensor_scan", "vector", dst, shape, result, mask, sources, **fields)


def _with_start(sources, initial, fields, mask):
    """A start for each partition goes into the first element: b[0] := (a[0] op0 start) op1 b[0]."""
    if fields["alu"] != "multiply" or fields["alu2"] not in ("add", "subtract", "max", "min"):
        raise KernelError("tensor_tensor_scan from a tile is supported for op0 multiply")
    fields["imm0"] = 0.0
    a, b = sources["src0"], sources["src1"]
    column = ops.tile(initial)
    whole = ops.tile(ops.copied(b, dtype=dtypes.FP32, mask=mask, engine="vector"))
    first = nl.binary("multiply", a[:, 0:1], column, dtype=dtypes.FP32)
    nl.binary(fields["alu2"], first, whole[:, 0:1], whole[:, 0:1])
    return whole


def _sum_into(out, opcode, reduce_op, reduce_res, reduce_cmd):
    """The last instruction also leaves the sums of its rows; other reductions take one more."""
    if reduce_res is None or reduce_cmd == "idle":
        return out
    made = _last(opcode)
    if alu(reduce_op or "add") != "add":
        axes = list(range(1, ops.tile(out).ndim))
        nl.reduce(alu(reduce_op), out, axes, reduce_res)
        Trace.now().loop.body[-1].follows = made
        return out
    made.dst1 = ops.tile(reduce_res)
    made.accumulate = reduce_cmd == "reduce"
    ops.mark_written(reduce_res)
    return out


def activation(*args, dst=None, op=None, data=None, bias=None, scale=1.0, dtype=None, mask=None,
               reduce_op=None, reduce_res=None, reduce_cmd=None, **_options):  # fmt: skip
    names = ["dst", "op", "data", "bias", "scale"] if args and isinstance(args[0], Tensor) else [
        "op", "data", "bias", "scale"
    ]  # fmt: skip
    given = dict(zip(names, args))
    dst, op, data = given.get("dst", dst), given.get("op", op), given.get("data", data)
    bias, scale = given.get("bias", bias), given.get("scale", scale)
    out = nl.activate(function_of(op), data, bias, scale, dst, dtype, mask)
    return _sum_into(out, "activation", reduce_op, reduce_res, reduce_cmd)


def activation_reduce(*args, reduce_op=None, reduce_res=None, **options):
    return activation(*args, reduce_op=reduce_op or "add", reduce_res=reduce_res, **options)


def tensor_scalar_reduce(dst=None, data=None, op0=None, operand0=None, *, reduce_op=None,
                         reduce_res=None, reverse0=False, dtype=None, mask=None,
                         **_options):  # fmt: skip
    out = tensor_scalar(dst, data, op0, operand0, reverse0, dtype=dtype, mask=mask)
    return _sum_into(out, "tensor_scalar", reduce_op, reduce_res, None)


def _last(opcode):
    trace = Trace.now()
    made = trace.loop.body[-1]
    if getattr(made, "opcode", "") != opcode:
        raise KernelError(f"no {opcode} precedes")
    return made


def reciprocal(dst=None, data=None, *, dtype=None, mask=None, **_options):
    if data is None:
        dst, data = None, dst
    return nl.activate("reciprocal", data, None, 1.0, dst, dtype, mask, engine="vector")


def affine_select(dst=None, pred=None, on_true_tile=None, on_false_value=0.0, *, dtype=None,
                  mask=None, **_options):  # fmt: skip
    if isinstance(dst, Mask):
        dst, pred = None, dst
    view = ops.tile(on_true_tile)
    if pred is True or pred is False:
        if pred:
            return ops.copied(view, dst, dtype, mask)
        raise KernelError("affine_select whose predicate is false everywhere")
    if len(pred.terms) != 1 or pred.terms[0].ndim != 2 or view.ndim != 2:
        raise KernelError("affine_select takes one comparison over the tile's two axes")
    term = pred.terms[0]
    if term.loops:
        raise NotAffine(term.loops, "a predicate that changes with the iteration")
    signs = {(1, -1): ("greater_equal", 1), (-1, 1): ("less_equal", -1)}
    if tuple(term.coefs) not in signs:
        raise KernelError("affine_select compares partition and column with factors of 1")
    comparison, sign = signs[tuple(term.coefs)]
    if view.space != "sbuf":
        view = ops.tile(ops.copied(view))
    return ops.emit(
        "affine_select", "gpsimd", dst, view.shape, dtype or view.dtype, mask, {"src0": view},
        alu=comparison, imm0=float(sign * term.const), imm1=float(on_false_value),
    )  # fmt: skip


# --- the array ------------------------------------------------------------------------------------


def _in_sbuf(view):
    return view if view.space == "sbuf" else ops.tile(ops.copied(view))


def nc_matmul(*args, dst=None, stationary=None, moving=None, is_transpose=False, mask=None,
              accumulate=None, **_options):  # fmt: skip
    names = ["dst", "stationary", "moving"] if len(args) == 3 else ["stationary", "moving"]
    given = dict(zip(names, args))
    dst, stationary = given.get("dst", dst), given.get("stationary", stationary)
    moving = given.get("moving", moving)
    left, right = _in_sbuf(ops.tile(stationary)), _in_sbuf(ops.tile(moving))
    if left.shape[0] != right.shape[0]:
        raise KernelError(
            f"nc_matmul contracts the partitions: {list(left.shape)} and {list(right.shape)}"
        )
    rows, columns = ops.free_size(left), ops.free_size(right)
    if left.shape[0] > 128 or rows > 128 or columns > 512:
        raise KernelError(
            f"nc_matmul of {list(left.shape)} and {list(right.shape)}: at most 128 × 128 and "
            "128 × 512"
        )
    if is_transpose and (moving.storage.base or moving.storage).identity:
        return nc_transpose(dst, left) if dst is not None else nc_transpose(left)
    clip = ops.clip_of(mask, (rows, columns)) if mask is not None else None
    if clip:
        left = left[:, clip[0][0] : sum(clip[0])]
        right = right[:, clip[1][0] : sum(clip[1])]
    if clip == ():
        return ops._nothing(dst, (rows, columns), dtypes.FP32, "psum")
    out = ops.fresh((rows, columns), dtypes.FP32, "psum") if dst is None else dst
    if out.space != "psum":
        raise KernelError("nc_matmul writes to PSUM")
    target = ops.fitted(ops.tile(out), (rows, columns)) if dst is not None else ops.tile(out)
    adds = {None: "auto" if dst is not None else False}.get(accumulate, bool(accumulate))
    made = ops.record("matmul", "tensor", dst=target.clipped(clip), src0=left, src1=right,
                      accumulate=adds, clip=clip)  # fmt: skip
    ops.mark_written(target)
    if dst is None:
        out.producer = made
        out.storage.valid = clip
    return out


def nc_transpose(*args, dst=None, data=None, mask=None, engine=None, dtype=None, **_options):
    if len(args) == 2:
        dst, data = args
    elif args:
        data = args[0]
    view = ops.tile(data)
    columns = ops.free_size(view)
    if view.ndim > 2:
        view = ops.tile(ops.copied(view)).reshape(view.shape[0], columns)
    word = _word(engine, "tensor")
    side = 32 if word == "vector" else 128
    if view.shape[0] > side or columns > side:
        raise KernelError(f"nc_transpose of {list(view.shape)} on {word}: at most {side} × {side}")
    if word == "tensor":
        view = _in_sbuf(view)
    shape = (columns, view.shape[0])
    space = "psum" if word == "tensor" else "sbuf"
    if dst is not None and dst.space != space:
        return ops.copied(nc_transpose(view, engine=engine), dst)
    clip = ops.clip_of(mask, view.shape)
    view = view.clipped(ops.with_valid(clip, [view], view.shape))
    full, shape = shape, (view.shape[1], view.shape[0])
    if full == shape or dst is not None:
        return ops.emit("transpose", word, dst, shape, view.dtype, None, {"src0": view}, space)
    out = ops.fresh(full, view.dtype, space)
    out.storage.valid = [(0, shape[0]), (0, shape[1])]
    part = out[: shape[0], : shape[1]]
    ops.emit("transpose", word, part, shape, view.dtype, None, {"src0": view}, space)
    return out


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    near = difflib.get_close_matches(name, globals(), 1)
    raise UnknownName(
        f"nki.isa.{name} is not supported{f', the nearest is {near[0]}' if near else ''}; "
        "supported are the instructions of nki 0.x to 0.6 that docs/guides/nki.md lists"
    )
