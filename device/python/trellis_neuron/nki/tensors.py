"""Tensors in HBM and tiles in SBUF and PSUM, as views with affine indices."""

import difflib

from . import dtypes
from .affine import Expr, Mask, as_expr, broadcast_shapes, combined
from .errors import KernelError, NotAffine, UnknownName, here
from .tracing import Trace

WHOLE, ZERO = slice(None), Expr()


class Storage:
    """What memory a tensor has. `par`: which dimension lies over the partitions; those before it
    are blocks, those after it lie in a partition. HBM: `base` and `offset` of a reshaped view."""

    def __init__(self, space, shape, dtype, kind, par=0, name="", base=None, offset=None):
        trace = Trace.now()
        self.space, self.shape, self.dtype, self.kind = space, tuple(shape), dtype, kind
        self.par, self.name, self.line = par, name, here()
        self.home = trace.loop if space != "hbm" else trace.root
        self.base, self.offset = base, offset or Expr()
        self.data = None  # a constant's values
        self.fill = None  # what it holds at first
        self.identity = False
        self.valid = None  # what masks left of a fresh result
        self.hoisted = False
        self.blocks = None
        if base is None:
            self.id = len(trace.storages)
            trace.storages.append(self)
        else:
            self.id = base.id

    def strides(self):
        """Elements; on chip the partition dimension has none."""
        out, step = [0] * len(self.shape), 1
        for axis in reversed(range(len(self.shape))):
            if self.space != "hbm" and axis == self.par:
                continue
            out[axis], step = step, step * self.shape[axis]
        return out


class DynamicSlice:
    """`nl.ds(start, size)`."""

    def __init__(self, start, size):
        self.start, self.size = start, int(size)


def _sliced(key, size):
    """The index of a slice over an axis of `size`."""
    if isinstance(key, DynamicSlice):
        return as_expr(key.start), key.size, 1
    if key == WHOLE:
        return ZERO, size, 1
    begin = as_expr(0 if key.start is None else key.start)
    end = as_expr(size if key.stop is None else key.stop)
    if not begin.loops and begin.const < 0:
        begin = begin + size
    if not end.loops and end.const < 0:
        end = end + size
    step = int(key.step or 1)
    extent = end - begin
    if extent.loops:
        raise NotAffine(extent.loops, "the length of a slice")
    length = max(0, -(-extent.const // step))
    if length == 0:
        raise KernelError(f"a slice of an axis of {size} is empty")
    if not begin.loops and begin.const + (length - 1) * step >= size:
        length = -(-(size - begin.const) // step)  # as Python's slices end
    return begin, length, step


class Tensor:
    """A view: for each dimension of its storage an index, affine in its own axes."""

    __array_ufunc__ = None

    def __init__(self, storage, shape, dims, producer=None):
        self.storage, self.shape, self.dims = storage, tuple(shape), tuple(dims)
        self.producer = producer

    @classmethod
    def whole(cls, storage, producer=None):
        rank = len(storage.shape)
        dims = [Expr(0, {}, storage.shape, [int(a == d) for a in range(rank)]) for d in range(rank)]
        return cls(storage, storage.shape, dims, producer)

    dtype = property(lambda self: self.storage.dtype)
    space = property(lambda self: self.storage.space)
    buffer = property(lambda self: self.storage.space)
    ndim = property(lambda self: len(self.shape))
    name = property(lambda self: self.storage.name)

    @property
    def size(self):
        n = 1
        for s in self.shape:
            n *= s
        return n

    def __repr__(self):
        return f"{self.space} {self.dtype} {list(self.shape)} of {self.storage.line}"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        near = difflib.get_close_matches(name, dir(Tensor), 1)
        raise UnknownName(
            f"a tensor has no `{name}` here{f', the nearest is `{near[0]}`' if near else ''}"
        )

    def __len__(self):
        return self.shape[0]

    def substituted(self, subs, shape):
        """The view whose axis a is indexed by subs[a], affine in the axes of `shape`."""
        rank = len(shape)
        subs = [sub.grown(rank) for sub in subs]
        dims = []
        for dim in self.dims:
            terms = [(coef, sub) for coef, sub in zip(dim.coefs, subs) if coef]
            dims.append(combined(terms, dim.const, dim.loops, shape))
        return Tensor(self.storage, shape, dims)

    def _keys(self, key):
        key = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(k, Mask) for k in key):
            raise KernelError("a mask is no index: pass it as `mask=`")
        given = sum(k is not None and k is not Ellipsis for k in key)
        if given > self.ndim:
            raise KernelError(f"{given} indices for the {self.ndim} axes of {self!r}")
        rest = [slice(None)] * (self.ndim - given)
        for place, k in enumerate(key):
            if k is Ellipsis:
                return key[:place] + rest + key[place + 1 :]
        return key + rest

    def __getitem__(self, key):
        keys = self._keys(key)
        if len(keys) == self.ndim and all(type(k) is slice and k == WHOLE for k in keys):
            return Tensor(self.storage, self.shape, self.dims)
        if any(isinstance(k, Expr) and k.ndim for k in keys):
            return self._gathered(keys)
        shape, parts, axis = [], [], 0
        for k in keys:
            if k is None:
                shape.append(1)
                continue
            size = self.shape[axis]
            axis += 1
            if isinstance(k, (slice, DynamicSlice)):
                begin, length, step = _sliced(k, size)
                parts.append((begin, len(shape), step))
                shape.append(length)
            elif isinstance(k, Tensor):
                raise KernelError("indices that are tiles (indirect access) are not supported")
            else:
                at = as_expr(k)
                parts.append((at + size if not at.loops and at.const < 0 else at, None, 0))
        subs = []
        for begin, place, step in parts:
            coefs = [step if a == place else 0 for a in range(len(shape))]
            subs.append(Expr(begin.const, begin.loops, shape, coefs))
        return self.substituted(subs, tuple(shape))

    def _gathered(self, keys):
        """Indices with axes: they broadcast, as NumPy's."""
        if any(k is None for k in keys):
            raise KernelError("None together with indices that have axes")
        subs = []
        shape = broadcast_shapes(*(k.shape for k in keys if isinstance(k, Expr)))
        for k, size in zip(keys, self.shape):
            if isinstance(k, (slice, DynamicSlice)):
                begin, length, step = _sliced(k, size)
                if length != 1:
                    raise KernelError(
                        "a slice together with indices that have axes: use nl.arange for both"
                    )
                k = begin
            subs.append(as_expr(k).grown(len(shape)))
        return self.substituted(subs, shape)

    def __setitem__(self, key, value):
        from . import operations

        operations.assign(self[key], value)

    def clipped(self, clip):
        """The part of each axis that (start, size) names; axes of 1 stay."""
        if clip is None:
            return self
        pad = len(clip) - self.ndim
        keys = [
            slice(None) if n == 1 else slice(start, start + size)
            for n, (start, size) in zip(self.shape, clip[pad:] if pad >= 0 else clip)
        ]
        return self[tuple(keys)]

    def broadcast_to(self, *shape):
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if broadcast_shapes(self.shape, shape) != tuple(shape):
            raise KernelError(f"{list(self.shape)} does not broadcast to {list(shape)}")
        dims = []
        for dim in self.dims:
            grown = dim.grown(len(shape))
            coefs = [c if n > 1 else 0 for c, n in zip(grown.coefs, grown.shape)]
            dims.append(Expr(grown.const, grown.loops, shape, coefs))
        return Tensor(self.storage, shape, dims)

    def expand_dims(self, axis):
        axis = axis % (self.ndim + 1)
        return self[tuple([slice(None)] * axis + [None])]

    def squeezed(self, keep=0):
        """Without the axes of 1, but for the first `keep`."""
        keys = [0 if n == 1 and a >= keep else slice(None) for a, n in enumerate(self.shape)]
        return self[tuple(keys)] if keys else self

    def permute(self, *axes):
        axes = tuple(axes[0]) if len(axes) == 1 and not isinstance(axes[0], int) else axes
        shape = tuple(self.shape[a] for a in axes)
        subs: list = [None] * self.ndim
        for place, a in enumerate(axes):
            subs[a] = Expr(0, {}, shape, [int(p == place) for p in range(len(axes))])
        return self.substituted(subs, shape)

    def offset(self):
        """The element offset in the storage, on chip within a partition."""
        terms = [(step, dim) for dim, step in zip(self.dims, self.storage.strides()) if step]
        start = self.storage.offset
        return combined(terms, start.const, start.loops, self.shape)

    def reshape(self, *shape):
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        shape = tuple(int(n) for n in shape)
        known = 1
        for n in shape:
            known *= n if n != -1 else 1
        shape = tuple(self.size // max(known, 1) if n == -1 else n for n in shape)
        first = 0 if self.space == "hbm" else 1
        total, sizes = self.offset(), self.shape[first:]
        step = 1
        for coef, n in zip(reversed(total.coefs[first:]), reversed(sizes)):
            if n > 1 and coef != step:
                raise KernelError(f"reshape of a view whose elements are not neighbours: {self!r}")
            step *= n
        count = 1
        for n in shape[first:]:
            count *= n
        if count != step or (first and shape[0] != self.shape[0]):
            raise KernelError(f"{list(self.shape)} cannot be reshaped to {list(shape)}")
        if self.space == "hbm":
            start = Expr(total.const, total.loops)
            base = self.storage.base or self.storage
            return Tensor.whole(
                Storage("hbm", shape, self.dtype, self.storage.kind, 0, self.name, base, start)
            )
        return self._reshaped_tile(shape, total)

    def _reshaped_tile(self, shape, total):
        """On chip: the storage's free dimensions are one, indexed by the new axes."""
        old = self.storage
        if len(old.shape) != 2:
            flat = 1
            for n in old.shape[old.par + 1 :]:
                flat *= n
            if old.par:
                raise KernelError("reshape of a tile with block dimensions")
            view = Storage(old.space, (old.shape[0], flat), old.dtype, old.kind, 0, old.name, old)
            view.home, view.line = old.home, old.line
        else:
            view = old
        coefs, step = [0] * len(shape), 1
        for axis in reversed(range(1, len(shape))):
            coefs[axis], step = step, step * shape[axis]
        part = self.dims[old.par]
        lanes = Expr(part.const, part.loops, shape, [part.coefs[0]] + [0] * (len(shape) - 1))
        return Tensor(view, shape, [lanes, Expr(total.const, total.loops, shape, coefs)])

    def _binary(self, op, other, swap=False):
        from . import language

        a, b = (other, self) if swap else (self, other)
        return getattr(language, op)(a, b)

    def _in_place(self, op, other):
        from . import operations

        operations.assign_op(self, op, other)
        return self


def _add_operators():
    for symbol, name in (
        ("add", "add"),
        ("sub", "subtract"),
        ("mul", "multiply"),
        ("truediv", "divide"),
        ("pow", "power"),
    ):
        setattr(Tensor, f"__{symbol}__", lambda s, o, n=name: s._binary(n, o))
        setattr(Tensor, f"__r{symbol}__", lambda s, o, n=name: s._binary(n, o, True))
        setattr(Tensor, f"__i{symbol}__", lambda s, o, n=name: s._in_place(n, o))
    for symbol, name in (
        ("gt", "greater"),
        ("ge", "greater_equal"),
        ("lt", "less"),
        ("le", "less_equal"),
    ):
        setattr(Tensor, f"__{symbol}__", lambda s, o, n=name: s._binary(n, o))
    Tensor.__neg__ = lambda s: s._binary("multiply", -1.0)


_add_operators()


class ParDim(int):
    """`nl.par_dim(128)`: the dimension over the partitions."""


def new(shape, dtype, space, kind="tile", name=""):
    """A tensor as a kernel declares it."""
    shape = tuple(shape) if not isinstance(shape, int) else (shape,)
    marked = [axis for axis, n in enumerate(shape) if isinstance(n, ParDim)]
    for n in shape:
        if isinstance(n, Expr):
            raise NotAffine(n.loops, "the shape of a tensor")
        if int(n) <= 0:
            raise KernelError(f"a shape of {list(shape)} has no elements")
    if len(marked) > 1:
        raise KernelError("a tile has one par_dim")
    par = marked[0] if marked and space != "hbm" else 0
    plain = tuple(int(n) for n in shape)
    if space != "hbm" and plain[par] > 128:
        raise KernelError(
            f"{plain[par]} partitions of a {space} tile of {list(plain)}: a core has 128"
        )
    return Tensor.whole(Storage(space, plain, dtypes.find(dtype), kind, par, name))
