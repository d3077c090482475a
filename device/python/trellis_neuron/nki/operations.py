"""Instructions over views: shapes, masks, results. What `language` and `isa` are made of."""

import numbers

from . import dtypes
from .affine import Expr, Mask, broadcast_shapes
from .errors import KernelError, here
from .tensors import Storage, Tensor
from .tracing import Instruction, Trace, hoisted

COLUMNS = 512  # of one matrix product's result


def is_number(value) -> bool:
    return isinstance(value, numbers.Number) or (
        hasattr(value, "dtype") and getattr(value, "shape", None) == ()
    )


def is_tile(value) -> bool:
    return isinstance(value, Tensor)


def lanes_of(view):
    """The axis that runs over the partitions, or None."""
    dim = view.dims[view.storage.par]
    for axis, (coef, n) in enumerate(zip(dim.coefs, view.shape)):
        if coef and n > 1:
            return axis
    return None


def tile(view) -> Tensor:
    """The same with the partitions as axis 0 and at least one axis more."""
    if view.space == "hbm":
        return (
            view
            if view.ndim >= 2
            else view[(*[slice(None)] * view.ndim, *[None] * (2 - view.ndim))]
        )
    axis = lanes_of(view)
    if axis:
        view = view.permute(axis, *(a for a in range(view.ndim) if a != axis))
    elif axis is None:
        moves = view.ndim and view.shape[0] > 1 and any(d.coefs[0] for d in view.dims)
        if moves or not view.ndim:
            view = view[(None, Ellipsis)]
    return view if view.ndim >= 2 else view[:, None]


def free_size(view) -> int:
    n = 1
    for s in view.shape[1:]:
        n *= s
    return n


def aligned(views):
    """Tiles of the same rank: partitions first, free axes to the right."""
    rank = max(v.ndim for v in views)
    if all(v.ndim == rank for v in views):
        return list(views)
    return [v[(slice(None), *[None] * (rank - v.ndim), Ellipsis)] for v in views]


def fitted(view, shape):
    """The view with the axes of 1 where `shape` has them."""
    if view.shape == tuple(shape):
        return view
    plain = view.squeezed(1)
    keys, at = [slice(None)], 1
    for n in shape[1:]:
        if n == 1:
            keys.append(None)
        else:
            keys.append(slice(None))
            at += 1
    if at != plain.ndim:
        raise KernelError(f"shapes {list(view.shape)} and {list(shape)} differ")
    out = plain[tuple(keys)]
    if out.shape != tuple(shape):
        raise KernelError(f"shapes {list(view.shape)} and {list(shape)} differ")
    return out


def clip_of(mask, shape):
    """(start, size) of each axis that the mask leaves; None: everything, (): nothing."""
    if mask is None or mask is True:
        return None
    if mask is False:
        return ()
    if not isinstance(mask, Mask) or mask.equal:
        raise KernelError("mask= takes comparisons of affine indices, joined by &")
    trace = Trace.now()
    clip = [(0, n) for n in shape]
    for term in mask.terms:
        low, high = term.bounds(trace.counts())
        if low >= 0:
            continue
        if term.loops:
            trace.treat(term.loops, "its mask changes with the iteration")
        axes = [a for a, (c, n) in enumerate(zip(term.coefs, term.shape)) if c and n > 1]
        if len(axes) != 1:
            raise KernelError("a mask over several axes is not a rectangle: nisa.affine_select")
        coef, axis = term.coefs[axes[0]], axes[0] + len(shape) - term.ndim
        begin, size = clip[axis]
        end = begin + size
        if coef < 0:
            end = min(end, term.const // -coef + 1)
        else:
            begin = max(begin, -(term.const // coef))
        if end <= begin:
            return ()
        clip[axis] = (begin, end - begin)
    return None if all(c == (0, n) for c, n in zip(clip, shape)) else clip


def is_whole(view) -> bool:
    rank = len(view.storage.shape)
    return view.shape == view.storage.shape and all(
        not d.const and not d.loops and tuple(d.coefs) == tuple(int(a == k) for a in range(rank))
        for k, d in enumerate(view.dims)
    )


def with_valid(clip, views, shape):
    """A fresh result is made where its operands are: what a mask left of them."""
    out = list(clip) if clip else [(0, n) for n in shape]
    for view in views:
        valid = view.storage.valid
        if valid is None or not is_whole(view) or len(valid) > len(shape):
            continue
        pad = len(shape) - len(valid)
        places = [0, *range(1 + pad, len(shape))]
        for axis, (start, size), n in zip(places, valid, view.shape):
            if n == 1:
                continue
            begin = max(out[axis][0], start)
            end = min(sum(out[axis]), start + size)
            out[axis] = (begin, max(0, end - begin))
    return None if all(c == (0, n) for c, n in zip(out, shape)) else out


def fresh(shape, dtype, space="sbuf") -> Tensor:
    shape = tuple(shape)
    if shape[0] > 128:
        raise KernelError(f"a result of {list(shape)}: a core has 128 partitions")
    return Tensor.whole(Storage(space, shape, dtypes.find(dtype), "tile"))


def record(opcode, engine, **fields):
    instruction = Instruction(opcode, engine, here(), **fields)
    return Trace.now().record(instruction)


def mark_written(view):
    storage = view.storage
    root = storage.base or storage
    root.writes = getattr(root, "writes", 0) + 1
    if root.hoisted and Trace.now().loop is not root.home:
        Trace.now().treatments[("spread", root.line)] = "stay"
        from .errors import Retrace

        raise Retrace


def emit(opcode, engine, out, shape, dtype, mask, sources, space="sbuf", **fields):
    """One instruction over tiles of `shape`. Its result: `out`, or a fresh tile."""
    clip = clip_of(mask, shape)
    if clip == ():
        return _nothing(out, shape, dtype, space)
    if out is None:
        clip = with_valid(clip, [v for v in sources.values() if v is not None], shape)
        result = fresh(shape, dtype, space)
        result.storage.valid = clip
        dst = result
    else:
        result, dst = out, fitted(tile(out), shape)
    cut = {role: v if v is None else v.clipped(clip) for role, v in sources.items()}
    instruction = record(opcode, engine, dst=dst.clipped(clip), clip=clip, **cut, **fields)
    mark_written(dst)
    if out is None:
        result.producer = instruction
    return result


def _nothing(out, shape, dtype, space):
    """A mask that selects nothing: legal in an iteration of many only."""
    trace = Trace.now()
    if not trace.treatments:
        raise KernelError("its mask selects nothing")
    return fresh(shape, dtype, space) if out is None else out


# --- partitions ---------------------------------------------------------------------------------


def _ones(count, dtype):
    trace = Trace.now()
    key = ("ones", count, dtype.name)
    if key not in trace.broadcasts:
        with hoisted(trace, trace.root):
            ones = fresh((1, count), dtype)
            record("memset", "vector", dst=ones, imm0=1.0)
        trace.broadcasts[key] = ones
    return trace.broadcasts[key]


def spread(view, count):
    """[1, N] on `count` partitions: products with ones, which the array does exactly."""
    trace = Trace.now()
    view = view[0:1]
    root = view.storage.base or view.storage
    key = ("spread", root.id, getattr(root, "writes", 0), count, repr([_key(d) for d in view.dims]))
    if key in trace.broadcasts and trace.broadcasts[key].storage.home.is_around(trace.loop):
        return trace.broadcasts[key]
    loops = {loop for d in view.dims for loop in d.loops}
    stays = trace.treatments.get(("spread", root.line)) == "stay"
    moves = any(trace.loops[k].depth > root.home.depth for k in loops)
    home = trace.loop if stays or moves else root.home
    if not home.is_around(trace.loop):
        home = trace.loop
    root.hoisted = root.hoisted or home is not trace.loop
    with hoisted(trace, home):
        out = _spread_here(view, count)
    trace.broadcasts[key] = out
    return out


def _key(dim):
    return (dim.const, sorted(dim.loops.items()), dim.coefs)


def _spread_here(view, count):
    dtype = view.dtype if view.dtype in (dtypes.FP32, dtypes.BF16) else dtypes.FP32
    row = view if view.space == "sbuf" and view.dtype is dtype else copied(view, dtype=dtype)
    row = tile(row)
    n = free_size(row)
    flat = row.reshape(1, n) if row.ndim > 2 and _is_dense(row) else row
    if flat.ndim > 2:
        flat = copied(flat).reshape(1, n)
    ones = _ones(count, dtype)
    out = fresh((count, n), view.dtype)
    for start in range(0, n, COLUMNS):
        size = min(COLUMNS, n - start)
        sums = fresh((count, size), dtypes.FP32, "psum")
        record("matmul", "tensor", dst=sums, src0=ones, src1=flat[:, start : start + size])
        record("tensor_copy", "vector", dst=out[:, start : start + size], src0=sums)
    return out.reshape(count, *view.shape[1:]) if view.ndim > 2 else out


def _is_dense(view):
    try:
        view.reshape(1, free_size(view))
        return True
    except KernelError:
        return False


def on_lanes(view, lanes):
    """The view with `lanes` partitions, copied there if one partition is broadcast."""
    if view.shape[0] == lanes and (lanes == 1 or view.space == "hbm" or lanes_of(view) == 0):
        return view
    if view.shape[0] == 1 or lanes_of(view) is None:
        return spread(view, lanes)
    raise KernelError(f"operands of {view.shape[0]} and {lanes} partitions")


# --- copies, fills, assignments -----------------------------------------------------------------


def copied(view, out=None, dtype=None, mask=None, engine=None):
    """A copy on chip; from or to HBM a transfer."""
    if view.space == "hbm" or (out is not None and out.space == "hbm"):
        return transferred(view, out, dtype, mask)
    src = tile(view)
    shape = src.shape if out is None else tile(out).squeezed(1).shape
    if len(shape) < 2:
        shape = (*shape, 1)
    if out is not None and free_size(src) == 1 and src.ndim < len(shape):
        src = aligned([src, tile(out)])[0]
    wanted = broadcast_shapes(src.shape, shape) if src.ndim == len(shape) else src.shape
    if out is None or wanted == src.shape:
        wanted = src.shape
    src = on_lanes(src, wanted[0])
    if src.shape != wanted:
        src = src.broadcast_to(wanted)
    if engine is None:
        engine = "scalar" if src.space == "psum" else "vector"
    result = dtype or src.dtype if out is None else out.dtype
    return emit("tensor_copy", engine, out, wanted, result, mask, {"src0": src})


def transferred(src, out=None, dtype=None, mask=None, engine=None):
    """A DMA between HBM and the chip, or on either."""
    a = tile(src)
    shape = a.shape
    if out is not None and is_tile(out) and tile(out).squeezed(1).shape != a.squeezed(1).shape:
        b = tile(out)
        if b.size != a.size and src.size != 1:
            raise KernelError(f"a transfer of {list(src.shape)} into {list(out.shape)}")
        if mask is not None:
            raise KernelError(f"a masked transfer of {list(src.shape)} into {list(out.shape)}")
        record("dma", engine or "", dst=b, src0=a)
        mark_written(b)
        return out
    if out is not None and out.space != "hbm" and src.space == "hbm":
        shape = tile(out).shape
        a = fitted(a, shape)
    if out is None and a.shape[0] > 128:
        raise KernelError(f"a tile of {list(a.shape)}: a core has 128 partitions")
    return emit(
        "dma", engine or "", out, shape, dtype or a.dtype, mask, {"src0": a}, name="transfer"
    )


def filled(view, value, mask=None, engine="vector"):
    shape = tile(view).shape
    return emit("memset", engine, view, shape, view.dtype, mask, {}, imm0=float(value))


def same_place(a, b) -> bool:
    return (
        a.storage is b.storage
        and a.shape == b.shape
        and [_key(d) for d in a.dims] == [_key(d) for d in b.dims]
    )


def _takes_over(target, value):
    """The instruction that made `value` writes `target` instead."""
    trace, made = Trace.now(), value.producer
    body = trace.loop.body
    if made is None or trace.insert_at is not None or not body:
        return False
    last = body[-1]
    if last is not made and getattr(last, "follows", None) is not made:
        return False
    if target.space == "hbm" or not is_whole(value):
        return False
    if made.engine == "tensor" and (target.space != "psum" or target.dtype != value.dtype):
        return False
    if made.opcode in ("dma", "dma_transpose") and target.space != "sbuf":
        return False
    if made.opcode == "dma_transpose" and target.dtype != value.dtype:
        return False
    try:
        dst = fitted(tile(target), tile(value).shape)
    except KernelError:
        return False
    trace.check_scope(target.storage)
    made.dst = dst.clipped(made.clip)
    if last is not made:
        last.src0 = made.dst
    mark_written(target)
    return True


def assign(target, value):
    """`target[...] = value`."""
    if isinstance(value, LoopReduce):
        return value.assign_to(target)
    if is_number(value):
        return filled(target, value)
    if not is_tile(value):
        raise KernelError(f"a tile is assigned {type(value).__name__}")
    if same_place(target, value) or _takes_over(target, value):
        return target
    return copied(value, target)


def assign_op(target, op, value):
    """`target op= value`; a product is accumulated where it lies in PSUM."""
    made = value.producer if is_tile(value) else None
    body = Trace.now().loop.body
    if op == "add" and target.space == "psum" and made is not None and made.opcode == "matmul":
        if body and body[-1] is made and target.dtype == value.dtype:
            made.dst = fitted(tile(target), tile(value).shape).clipped(made.clip)
            made.accumulate = "auto"
            mark_written(target)
            return
    from . import language

    language.binary(op, target, value, out=target)


class LoopReduce:
    """`nl.loop_reduce`: what is assigned becomes the reduction over iterations."""

    MOST = 3.4028234663852886e38  # of fp32
    START = {"add": 0.0, "max": -MOST, "min": MOST, "multiply": 1.0}

    def __init__(self, value, alu, loops):
        self.value, self.alu, self.loops = value, alu, loops

    def assign_to(self, target):
        trace = Trace.now()
        outer = [trace.loops[k] for k in self.loops if k < len(trace.loops)]
        if not outer and target.storage.fill is None:
            target.storage.fill = self.START[self.alu]
        if outer:
            target.storage.fill = None
            first = min(outer, key=lambda loop: loop.depth)
            with hoisted(trace, first.parent):
                inside = {
                    loop.id: loop.count
                    for loop in trace.loops
                    if first.is_around(loop) and loop is not first
                }
                start = tile(_over_loops(target, inside))
                record("memset", "vector", dst=start, imm0=self.START[self.alu])
        from . import language

        language.binary(self.alu, target, self.value, out=target)
        return target


def _over_loops(view, inside):
    """The view with an axis for each loop of `inside` that its index has."""
    loops = [k for k in inside if any(k in d.loops for d in view.dims)]
    sizes = tuple(inside[k] for k in loops)
    shape = sizes + view.shape
    dims = []
    for d in view.dims:
        rest = {k: v for k, v in d.loops.items() if k not in loops}
        dims.append(Expr(d.const, rest, shape, [d.loops.get(k, 0) for k in loops] + list(d.coefs)))
    return Tensor(view.storage, shape, dims)
