"""`@nki.jit`: a kernel, traced when it is called."""

import functools
import inspect

import numpy as np

from . import dtypes
from .affine import Expr
from .errors import KernelError
from .finish import body_of, finish, tensor_record
from .tensors import Storage, Tensor
from .tracing import Trace, run


class Spec:
    """An input without values."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtypes.find(dtype)


def as_array(value):
    """(values, dtype) of an array of NumPy or LibTorch; None: it is none."""
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        dtype = dtypes.find(str(value.dtype))
        plain = value.detach().cpu()
        return (plain.float() if dtype is dtypes.BF16 else plain).numpy(), dtype
    if isinstance(value, np.ndarray) and value.ndim:
        return value, dtypes.find(value.dtype)
    if isinstance(value, Spec):
        return None, value.dtype
    return None


class Capture:
    """What the calls of kernels while it is there leave: documents, for the program."""

    active = None

    def __init__(self, dtype_of=None):
        self.traces: list = []
        self.dtype_of = dtype_of or {}

    def __enter__(self):
        Capture.active = self
        return self

    def __exit__(self, *_):
        Capture.active = None


class Traced:
    """A finished trace: the document's parts, and the values that go with it."""

    def __init__(self, name, trace, inputs, outputs):
        self.name, self.trace, self.inputs, self.outputs = name, trace, inputs, outputs

    def document(self):
        return {
            "schema": "trellis.nki_trace/1",
            "kernel": self.name,
            "instructions": self.trace.count,
            "unrolled": sorted(p for p, how in self.trace.treatments.items() if how == "unroll"),
            "tensors": [tensor_record(s) for s in self.trace.storages],
            "body": self.body,
            "outputs": [o.storage.id for o in self.outputs],
        }


def _written(trace):
    from .finish import accesses

    return {a.storage.id for a in accesses(trace.root) if a.role in ("dst", "dst1")}


def _settled(trace, result, inputs):
    finish(trace)
    body = body_of(trace.root, trace.counts())
    outputs = [x for x in (result if isinstance(result, (tuple, list)) else [result])]
    outputs = [x for x in outputs if isinstance(x, Tensor)]
    written = _written(trace)
    if not outputs:
        outputs = [x for x in inputs if x.storage.id in written]
    if not outputs:
        raise KernelError("the kernel returns no tensor and writes to no input", trace.place)
    for out in outputs:
        if out.space != "hbm":
            raise KernelError(f"the kernel returns {out!r}: results lie in HBM", trace.place)
        if out.storage.base is not None:
            out.storage = out.storage.base
        if out.storage.kind == "scratch":
            out.storage.kind = "output"
    return body, outputs


class Kernel:
    def __init__(self, function, grid=()):
        self.function, self.grid = function, tuple(grid)
        functools.update_wrapper(self, function)

    def __getitem__(self, grid):
        grid = grid if isinstance(grid, tuple) else (grid,)
        return Kernel(self.function, [int(getattr(g, "count", g)) for g in grid])

    def trace(self, args, kwargs, dtype_of=None):
        code = self.function.__code__
        place = f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
        names = inspect.signature(self.function).bind_partial(*args, **kwargs).arguments

        def once(trace):
            trace.place, trace.grid = place, self.grid
            given = {}
            for name, value in names.items():
                given[name] = _argument(name, value, dtype_of or {})
            inputs = [x for x in given.values() if isinstance(x, Tensor)]
            result = _with_grid(trace, self, lambda: _call(self.function, given))
            body, outputs = _settled(trace, result, inputs)
            return inputs, outputs, body

        trace = run(once)
        inputs, outputs, body = trace.result
        traced = Traced(self.function.__name__, trace, inputs, outputs)
        traced.body = body
        return traced

    def __call__(self, *args, **kwargs):
        if Trace.current_trace is not None:
            return self.function(*args, **kwargs)
        if Capture.active is not None:
            capture = Capture.active
            traced = self.trace(args, kwargs, capture.dtype_of)
            capture.traces.append(traced)
            blank = [np.zeros(o.shape, o.dtype.numpy or np.float32) for o in traced.outputs]
            return blank[0] if len(blank) == 1 else tuple(blank)
        from .program import simulated

        return simulated(self, args, kwargs)


def _call(function, given):
    parameters = inspect.signature(function).parameters
    positional, named = [], {}
    for name, value in given.items():
        kind = parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional += value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return function(*positional, **named)


def _with_grid(trace, kernel, call):
    """One core goes through the grid: a loop for each of its axes of more than one."""
    loops, indices = [], []
    for axis, count in enumerate(kernel.grid):
        place = f"{trace.place}[{axis}]"
        if count > 1 and trace.treatments.get(place) is None:
            loop = trace.open(count, "affine", place)
            loops.append(loop)
            indices.append(Expr(0, {loop.id: 1}))
        elif count > 1:
            raise KernelError(f"program_id({axis}) has to be affine", trace.place)
        else:
            indices.append(0)
    trace.program_id = lambda axis: indices[axis] if axis < len(indices) else 0
    result = call()
    for loop in reversed(loops):
        trace.close(loop)
    return result


def _argument(name, value, dtype_of):
    array = as_array(value)
    if array is None:
        return value
    values, dtype = array
    dtype = dtype_of.get(name, dtype)
    storage = Storage("hbm", value.shape, dtype, "input", 0, name)
    storage.data = values
    return Tensor.whole(storage)


def jit(function=None, **_options):
    """Marks a kernel. Called on arrays it runs on the emulated core."""
    if function is None:
        return lambda f: Kernel(f)
    return function if isinstance(function, Kernel) else Kernel(function)
