"""A kernel while it runs: its loops, tiles and instructions."""

import ast
import inspect
import linecache
import textwrap

from .affine import Expr, as_expr
from .errors import KernelError, NotAffine, Retrace, here, user_frame

MOST_INSTRUCTIONS = 200_000  # of one trace, unrolled loops included
MOST_TRACES = 400


class Loop:
    """A loop of the trace; 0 is the kernel itself. `body`: loops and instructions in order."""

    def __init__(self, number, count, kind, place, parent):
        self.id, self.count, self.kind, self.place = number, count, kind, place
        self.parent, self.body = parent, []
        self.depth = 0 if parent is None else parent.depth + 1

    def chain(self):
        """This loop and those around it, innermost first."""
        loop = self
        while loop is not None:
            yield loop
            loop = loop.parent

    def is_around(self, other) -> bool:
        return any(loop is self for loop in other.chain())


class Instruction:
    """One instruction. Operands are views of tiles, or None."""

    def __init__(self, opcode, engine, line, **fields):
        self.opcode, self.engine, self.line = opcode, engine, line
        self.dst = self.src0 = self.src1 = self.dst1 = None
        self.alu = self.alu2 = "none"
        self.activation = "identity"
        self.imm0 = self.imm1 = 0.0
        self.accumulate = self.overwrite_first = False
        self.clip = None  # what a mask left of dst
        self.name = ""  # the function of the kernel's file
        for key, value in fields.items():
            setattr(self, key, value)

    def operands(self):
        roles = (("dst", self.dst), ("src0", self.src0), ("src1", self.src1), ("dst1", self.dst1))
        return [r for r in roles if r[1] is not None]


class Trace:
    """One run of a kernel. `treatments`: by place, "peel" or "unroll" for loops that do not stay
    whole."""

    current_trace = None

    def __init__(self, treatments):
        self.treatments = treatments
        self.root = Loop(0, 1, "root", "", None)
        self.loop = self.root
        self.loops = [self.root]
        self.storages = []
        self.count = 0
        self.insert_at = None  # (body, place) of hoisted instructions
        self.broadcasts = {}
        self.warnings = []

    @classmethod
    def now(cls):
        if cls.current_trace is None:
            raise KernelError("it is used outside of a kernel that is being traced")
        return cls.current_trace

    def counts(self):
        return {loop.id: loop.count for loop in self.loops}

    def open(self, count, kind, place):
        loop = Loop(len(self.loops), count, kind, place, self.loop)
        self.loops.append(loop)
        self.loop.body.append(loop)
        self.loop = loop
        return loop

    def close(self, loop):
        if self.loop is not loop:
            raise KernelError(f"the loop of {loop.place} ends before one inside it")
        self.loop = loop.parent

    def record(self, instruction):
        self.count += 1
        if self.count > MOST_INSTRUCTIONS:
            unrolled = sorted(p for p, how in self.treatments.items() if how == "unroll")
            raise KernelError(
                f"more than {MOST_INSTRUCTIONS:,} instructions; loops that were unrolled: "
                f"{', '.join(unrolled) or 'those of Python itself'}"
            )
        for _, view in instruction.operands():
            self.check_scope(view.storage)
        if self.insert_at is None:
            self.loop.body.append(instruction)
        else:
            body, at = self.insert_at
            body.insert(at, instruction)
            self.insert_at = (body, at + 1)
        return instruction

    def check_scope(self, storage):
        if storage.home.is_around(self.loop):
            return
        inner = {loop.id for loop in storage.home.chain() if not loop.is_around(self.loop)}
        raise NotAffine(inner, f"the tile of {storage.line} is used after its loop")

    def treat(self, loops, why):
        """Starts again with these loops peeled, or unrolled if they were peeled before."""
        for number in loops:
            self.raise_treatment(self.loops[number].place, why)
        raise Retrace

    def raise_treatment(self, place, why):
        how = self.treatments.get(place)
        if how == "unroll":
            raise KernelError(f"the loop of {place} is unrolled and still not affine: {why}")
        self.treatments[place] = "unroll" if how == "peel" else "peel"


class hoisted:
    """Instructions of the block are put into `home`, before the loop of it that is open."""

    def __init__(self, trace, home):
        self.trace, self.home = trace, home

    def __enter__(self):
        trace = self.trace
        self.before = None
        if self.home is trace.loop:
            return
        self.before = (trace.loop, trace.insert_at)
        child = next(loop for loop in trace.loop.chain() if loop.parent is self.home)
        trace.loop = self.home
        trace.insert_at = (self.home.body, self.home.body.index(child))

    def __exit__(self, *_):
        if self.before is not None:
            self.trace.loop, self.trace.insert_at = self.before


def _numbers(args):
    if not 1 <= len(args) <= 3:
        raise KernelError(f"a range takes 1 to 3 numbers, got {len(args)}")
    begin, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    begin, extent = as_expr(begin), as_expr(end) - as_expr(begin)
    if extent.loops:
        raise NotAffine(extent.loops, "the length of a range")
    if int(step) <= 0:
        raise KernelError(f"a range's step must be positive, got {step}")
    return begin, max(0, -(-extent.const // int(step))), int(step)


def _carried_names(frame):
    """Names that the loop of the kernel's current line reads before it binds them anew."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, IndentationError):
        return set()
    line = frame.f_lineno - first + 1
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and node.lineno <= line <= node.iter.end_lineno:
            return _read_then_bound(node)
    return set()


class _Order:
    """Names in the order in which statements read and bind them."""

    def __init__(self):
        self.bound, self.read, self.carried = set(), set(), set()

    def expressions(self, *nodes):
        for node in nodes:
            for n in ast.walk(node):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                    self.read |= {n.id} - self.bound

    def bind(self, *nodes):
        for node in nodes:
            for n in ast.walk(node):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                    self.carried |= {n.id} & self.read
                    self.bound.add(n.id)

    def statements(self, body):
        for node in body:
            if isinstance(node, ast.AugAssign):
                self.expressions(node.value)
                if isinstance(node.target, ast.Name):
                    self.read |= {node.target.id} - self.bound
                self.bind(node.target)
                continue
            inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            heads = [
                value
                for field, value in ast.iter_fields(node)
                if field not in ("body", "orelse", "finalbody")
                for value in (value if isinstance(value, list) else [value])
                if isinstance(value, ast.AST)
            ]
            self.expressions(*heads)
            self.bind(*heads)
            for part in inner:
                self.statements(part if isinstance(part, list) else [])


def _read_then_bound(loop):
    order = _Order()
    order.statements(loop.body)
    return order.carried - {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}


def _symbolic(trace, kind, place, frame, begin, step, count):
    loop = trace.open(count, kind, place)
    carried = _carried_names(frame)
    before = {name: frame.f_locals.get(name) for name in carried}
    yield begin + Expr(0, {loop.id: step})
    for name in carried:
        if name in before and frame.f_locals.get(name) is not before[name]:
            raise NotAffine({loop.id}, f"`{name}` is bound anew in each iteration")
    trace.close(loop)


def _iterate(trace, kind, place, frame, begin, step, count):
    how = trace.treatments.get(place)
    whole = count - 1 if how == "peel" else count
    if how != "unroll" and whole > 1:
        yield from _symbolic(trace, kind, place, frame, begin, step, whole)
        rest = range(whole, count)
    else:
        rest = range(count)
    for i in rest:
        value = begin + step * i
        yield value if value.loops else value.const


def loop_range(kind, args):
    begin, count, step = _numbers(args)
    return _iterate(Trace.now(), kind, here(), user_frame(), begin, step, count)


def affine_range(*args, **_options):
    """Iterations that do not depend on one another, but for sums."""
    return loop_range("affine", args)


def sequential_range(*args, **_options):
    """Iterations in their order."""
    return loop_range("sequential", args)


def static_range(*args, **_options):
    """Unrolled: the counter is a plain number."""
    begin, count, step = _numbers(args)
    if begin.loops:
        return (begin + step * i for i in range(count))
    return iter(range(begin.const, begin.const + step * count, step))


def _unroll(trace, loops, treatments, why):
    places = {trace.loops[number].place for number in loops}
    if not places or all(treatments.get(place) == "unroll" for place in places):
        raise KernelError(f"{why}, and its loops are unrolled already")
    for place in places:
        treatments[place] = "unroll"


def _attempt(function, treatments):
    """A finished trace, or None when another treatment is to be tried."""
    trace = Trace.current_trace = Trace(treatments)
    try:
        trace.result = function(trace)
        left = {loop.id for loop in trace.loop.chain() if loop.parent is not None}
        if left:
            raise NotAffine(left, "it is left by break or return")
        return trace
    except NotAffine as error:
        _unroll(trace, error.loops, treatments, error.why)
    except Retrace:
        pass
    except KernelError:
        raise
    except (IndexError, KeyError, AttributeError) as error:
        whole = {loop.id for loop in trace.loops[1:] if treatments.get(loop.place) != "unroll"}
        if not whole:
            raise
        _unroll(trace, whole, treatments, f"{type(error).__name__}: {error}")
    finally:
        Trace.current_trace = None
        linecache.checkcache()
    return None


def run(function):
    """Runs `function(trace)` until its loops are whole where they can be."""
    treatments: dict[str, str] = {}
    for _ in range(MOST_TRACES):
        trace = _attempt(function, treatments)
        if trace is not None:
            return trace
    raise KernelError(f"its loops are not settled after {MOST_TRACES} attempts")
