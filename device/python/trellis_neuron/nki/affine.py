"""Indices that are affine in loop counters and in the axes of a tile."""

import numbers

from .errors import KernelError, NotAffine


def _is_int(value) -> bool:
    if type(value) is int:
        return True
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def broadcast_shapes(*shapes):
    """NumPy's rule, right-aligned."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size == 1 or size == out[axis]:
                continue
            if out[axis] != 1:
                raise KernelError(f"shapes {list(shapes)} do not broadcast")
            out[axis] = size
    return tuple(out)


class Expr:
    """const + Σ loops[id] · counter(id) + Σ coefs[axis] · place(axis): a number for each place of
    an array of `shape`."""

    __slots__ = ("const", "loops", "shape", "coefs")
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic with an Expr to the Expr

    def __init__(self, const=0, loops=None, shape=(), coefs=()):
        self.const, self.loops = int(const), loops or {}
        self.shape, self.coefs = tuple(shape), tuple(coefs)

    @property
    def ndim(self):
        return len(self.shape)

    def is_constant(self) -> bool:
        return not self.loops and not any(c and n > 1 for c, n in zip(self.coefs, self.shape))

    def grown(self, rank):
        """The same with size-1 axes in front."""
        pad = rank - len(self.shape)
        if not pad:
            return self
        return Expr(self.const, self.loops, (1,) * pad + self.shape, (0,) * pad + self.coefs)

    def _add(self, other, sign):
        if _is_int(other):
            return Expr(self.const + sign * int(other), self.loops, self.shape, self.coefs)
        if not isinstance(other, Expr):
            return NotImplemented
        shape, a, b = self.shape, self, other
        if a.shape != b.shape:
            shape = broadcast_shapes(a.shape, b.shape)
            a, b = a.grown(len(shape)), b.grown(len(shape))
        loops = dict(a.loops)
        for loop, coef in b.loops.items():
            loops[loop] = loops.get(loop, 0) + sign * coef
        loops = {k: v for k, v in loops.items() if v}
        coefs = tuple(
            (x if m > 1 else 0) + sign * (y if n > 1 else 0)
            for x, y, m, n in zip(a.coefs, b.coefs, a.shape, b.shape)
        )
        return Expr(a.const + sign * b.const, loops, shape, coefs)

    def __add__(self, other):
        return self._add(other, 1)

    __radd__ = __add__

    def __sub__(self, other):
        return self._add(other, -1)

    def __rsub__(self, other):
        return (self * -1)._add(other, 1)

    def __neg__(self):
        return self * -1

    def __mul__(self, other):
        if isinstance(other, Expr):
            if other.is_constant() and other.ndim == 0:
                return self * other.const
            if self.is_constant() and self.ndim == 0:
                return other * self.const
            raise NotAffine(self.loops or other.loops, "a product of two counters")
        if not _is_int(other):
            return NotImplemented
        k = int(other)
        loops = {loop: coef * k for loop, coef in self.loops.items()} if k else {}
        return Expr(self.const * k, loops, self.shape, [c * k for c in self.coefs])

    __rmul__ = __mul__

    def _divided(self, other, rest):
        if not _is_int(other) or other <= 0:
            raise NotAffine(self.loops, "a division")
        parts = [*self.loops.values(), *self.coefs]
        if all(p % other == 0 for p in parts):
            if rest:
                return Expr(self.const % other, {}, self.shape, [0] * self.ndim)
            loops = {k: v // other for k, v in self.loops.items()}
            return Expr(self.const // other, loops, self.shape, [c // other for c in self.coefs])
        raise NotAffine(self.loops, f"{'%' if rest else '//'} {other}")

    def __floordiv__(self, other):
        return self._divided(other, False)

    def __mod__(self, other):
        return self._divided(other, True)

    def __truediv__(self, other):
        raise NotAffine(self.loops, "a division")

    def __rfloordiv__(self, other):
        raise NotAffine(self.loops, "a division")

    __rmod__ = __rtruediv__ = __pow__ = __rpow__ = __and__ = __or__ = __rfloordiv__

    def __ge__(self, other):
        return Mask.of(self - other)

    def __gt__(self, other):
        return Mask.of(self - other - 1)

    def __le__(self, other):
        return Mask.of((self - other) * -1)

    def __lt__(self, other):
        return Mask.of((self - other) * -1 - 1)

    def __eq__(self, other):
        if other is None or isinstance(other, str):
            return False
        return Mask.of(self - other, equal=True)

    def __ne__(self, other):
        if other is None or isinstance(other, str):
            return True
        if self.is_constant() and _is_int(other):
            return self.const != other
        raise NotAffine(self.loops, "a comparison")

    __hash__ = object.__hash__

    def _number(self, what):
        if self.is_constant() and not self.shape:
            return self.const
        if self.loops:
            raise NotAffine(self.loops, what)
        raise KernelError(f"{what} of an index with axes {list(self.shape)}: it is no number")

    def __index__(self):
        return self._number("a plain number")

    __int__ = __index__

    def __float__(self):
        return float(self._number("a plain number"))

    def __bool__(self):
        return bool(self._number("a truth value"))

    def __abs__(self):
        return abs(self._number("abs()"))

    def __round__(self, digits=None):
        return self._number("round()")

    def __getitem__(self, key):
        """`[:, None]` and the like: new axes."""
        key = key if isinstance(key, tuple) else (key,)
        shape, coefs, axis = [], [], 0
        for k in key:
            if k is None:
                shape.append(1)
                coefs.append(0)
            elif k is Ellipsis or (isinstance(k, slice) and k == slice(None)):
                take = self.ndim - axis if k is Ellipsis else 1
                shape += self.shape[axis : axis + take]
                coefs += self.coefs[axis : axis + take]
                axis += take
            else:
                raise KernelError("an index takes `:` and None only")
        shape += self.shape[axis:]
        coefs += self.coefs[axis:]
        return Expr(self.const, self.loops, shape, coefs)

    def bounds(self, counts):
        """The smallest and the largest value; `counts`: iterations by loop."""
        low = high = self.const
        terms = [(c, counts[loop]) for loop, c in self.loops.items()]
        for coef, count in terms + list(zip(self.coefs, self.shape)):
            low += min(0, coef * (count - 1))
            high += max(0, coef * (count - 1))
        return low, high


class Mask:
    """Places at which every one of `terms` is ≥ 0 (`equal`: is 0)."""

    __slots__ = ("terms", "equal")
    __array_ufunc__ = None

    def __init__(self, terms, equal=False):
        self.terms, self.equal = list(terms), equal

    @classmethod
    def of(cls, expr, equal=False):
        """A truth value when it is the same everywhere."""
        if expr.is_constant():
            return expr.const == 0 if equal else expr.const >= 0
        return cls([expr], equal)

    def __and__(self, other):
        if other is True or other is None:
            return self
        if not isinstance(other, Mask) or self.equal or other.equal:
            raise KernelError("masks are joined by `&` of comparisons")
        return Mask(self.terms + other.terms)

    __rand__ = __and__

    def __bool__(self):
        loops = {loop for term in self.terms for loop in term.loops}
        if loops:
            raise NotAffine(loops, "a comparison that decides what is executed")
        raise KernelError("the truth of a mask: masks are for `mask=`")


def combined(terms, const, loops, shape):
    """const + loops + Σ coef · expr of `terms`, all of `shape`'s rank."""
    total, coefs = dict(loops), [0] * len(shape)
    for coef, expr in terms:
        const += coef * expr.const
        for loop, step in expr.loops.items():
            total[loop] = total.get(loop, 0) + coef * step
        for axis, step in enumerate(expr.coefs):
            if step and expr.shape[axis] > 1:
                coefs[axis] += coef * step
    return Expr(const, {k: v for k, v in total.items() if v}, shape, coefs)


def as_expr(value) -> Expr:
    return value if isinstance(value, Expr) else Expr(int(value))


def arange(*args) -> Expr:
    begin, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    begin, end, step = as_expr(begin), as_expr(end), int(step)
    extent = end - begin
    if extent.loops:
        raise NotAffine(extent.loops, "the length of an arange")
    count = max(0, -(-extent.const // step))
    if count == 0:
        raise KernelError(f"arange{args} is empty")
    return Expr(begin.const, begin.loops, (count,), (step,))


class _Grid:
    """`nl.mgrid[0:128, 0:512]`: an open grid of indices."""

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        out = []
        for axis, part in enumerate(key):
            index = arange(part.start or 0, part.stop, part.step or 1)
            out.append(index[tuple(slice(None) if a == axis else None for a in range(len(key)))])
        return Axes(out)


class Axes(tuple):
    """The axes of a grid; also by the names p, x, y, z, w."""

    def __getattr__(self, name):
        if name in ("p", "x", "y", "z", "w"):
            return self["pxyzw".index(name)]
        raise AttributeError(name)


mgrid = _Grid()
