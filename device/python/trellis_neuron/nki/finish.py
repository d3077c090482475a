"""What is settled when a kernel has run: block dimensions that one iteration has to itself, first
values, which product of a sum comes first."""

from .affine import Expr
from .errors import KernelError, NotAffine
from .operations import _key, tile
from .tensors import Storage, Tensor
from .tracing import Instruction, Loop


class Access:
    """An operand of an instruction, and the loop around it."""

    __slots__ = ("instruction", "role", "loop")

    def __init__(self, instruction, role, loop):
        self.instruction, self.role, self.loop = instruction, role, loop

    @property
    def view(self):
        return getattr(self.instruction, self.role)

    @view.setter
    def view(self, view):
        setattr(self.instruction, self.role, view)

    @property
    def storage(self):
        storage = self.view.storage
        return storage.base or storage


def accesses(loop):
    """In program order."""
    for item in loop.body:
        if isinstance(item, Loop):
            yield from accesses(item)
        else:
            for role, _ in item.operands():
                yield Access(item, role, loop)


def by_storage(trace):
    found: dict = {}
    for access in accesses(trace.root):
        found.setdefault(access.storage.id, []).append(access)
    return found


def _common(loops):
    chains = [list(loop.chain())[::-1] for loop in loops]
    last = None
    for level in zip(*chains):
        if any(loop is not level[0] for loop in level):
            break
        last = level[0]
    return last


def _blocks(access, par):
    return access.view.dims[:par]


def _private(loop, uses, par, counts, inside):
    """Whether each iteration of `loop` has its own blocks."""
    coefs = [[dim.loops.get(loop.id, 0) for dim in _blocks(u, par)] for u in uses]
    if any(c != coefs[0] for c in coefs):
        return False
    for d, step in enumerate(coefs[0]):
        if not step:
            continue
        outer = [
            {k: v for k, v in _blocks(u, par)[d].loops.items() if k not in inside and k != loop.id}
            for u in uses
        ]
        if any(o != outer[0] for o in outer):
            continue
        lows, highs = [], []
        for u in uses:
            dim = _blocks(u, par)[d]
            rest = Expr(
                dim.const, {k: v for k, v in dim.loops.items() if k in inside}, dim.shape, dim.coefs
            )
            low, high = rest.bounds(counts)
            lows.append(low)
            highs.append(high)
        if max(highs) - min(lows) < abs(step):
            return True
    return False


def _without(dim, loop):
    loops = {k: v for k, v in dim.loops.items() if k != loop.id}
    return Expr(dim.const, loops, dim.shape, dim.coefs)


def _rewrite(use, par, change):
    view = use.view
    dims = [change(d, dim) if d < par else dim for d, dim in enumerate(view.dims)]
    use.view = Tensor(view.storage, view.shape, dims)


def privatise(trace, uses):
    """Blocks that loops go through one by one, with nothing left to the next: the tile becomes one
    of the innermost such loop, and has only the blocks that are alive together."""
    storage = uses[0].storage
    par, counts = storage.par, trace.counts()
    if not par or storage.space == "hbm":
        return
    common = _common([u.loop for u in uses])
    path = [loop for loop in list(common.chain())[::-1] if loop is not storage.home]
    for loop in path:
        if not storage.home.is_around(loop):
            continue
        inside = {i.id for i in trace.loops if loop.is_around(i) and i is not loop}
        if not _private(loop, uses, par, counts, inside):
            break
        for use in uses:
            _rewrite(use, par, lambda _d, dim, loop=loop: _without(dim, loop))
        storage.home = loop
    sizes = []
    for d in range(par):
        bounds = [_blocks(u, par)[d].bounds(counts) for u in uses]
        low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
        for use in uses:
            _rewrite(use, d + 1, lambda k, dim, d=d, low=low: dim + -low if k == d else dim)
        sizes.append(high - low + 1)
    storage.shape = (*sizes, *storage.shape[par:])


def _boxes_meet(a, b):
    return all(low <= other_high and other_low <= high
               for (low, high), (other_low, other_high) in zip(a, b))  # fmt: skip


def _components(boxes):
    """Groups of boxes that overlap, directly or through others."""
    groups: list = []
    for box in boxes:
        met = [g for g in groups if any(_boxes_meet(box, other) for other in g)]
        groups = [g for g in groups if g not in met] + [[box, *(b for g in met for b in g)]]
    return groups


def split(trace, uses):
    """Blocks that no use has in common are tiles of their own: those of a peeled iteration."""
    storage = uses[0].storage
    if not storage.par or storage.space == "hbm":
        return
    counts = trace.counts()
    boxes: dict = {}
    for use in uses:
        box = tuple(d.bounds(counts) for d in _blocks(use, storage.par))
        boxes.setdefault(box, []).append(use)
    if len(boxes) == 1 or len(boxes) > 4096:
        return
    for group in _components(list(boxes))[1:]:
        copy = Storage(
            storage.space, storage.shape, storage.dtype, "tile", storage.par, storage.name
        )
        copy.home, copy.line, copy.fill = storage.home, storage.line, storage.fill
        for box in group:
            for use in boxes[box]:
                use.view = Tensor(copy, use.view.shape, use.view.dims)


def _fill(trace, storage, uses, value):
    total = 1
    for axis, n in enumerate(storage.shape):
        total *= n if axis != storage.par else 1
    lanes = storage.shape[storage.par]
    whole = Storage(storage.space, (lanes, total), storage.dtype, "tile", 0, storage.name, storage)
    whole.home, whole.line = storage.home, storage.line
    engine = "gpsimd" if storage.space == "sbuf" else "vector"
    made = Instruction("memset", engine, storage.line, dst=Tensor.whole(whole), imm0=value)
    body, loop = storage.home.body, uses[0].loop
    child = uses[0].instruction
    while loop is not storage.home:
        child, loop = loop, loop.parent
    body.insert(body.index(child), made)


def _reduction_loops(use, home):
    """Loops inside the tile's in which the use stays at one place, innermost first."""
    inside = []
    for loop in use.loop.chain():
        if loop is home:
            break
        inside.append(loop)
    view = use.view
    return inside, [i for i in inside if not any(i.id in d.loops for d in view.dims)]


def _starts_empty(use):
    """Zeros that the kernel writes before a sum: the first product overwrites them."""
    made = use.instruction
    return made.opcode == "memset" and made.imm0 == 0 and use.role == "dst"


def settle_sums(storage, uses):
    """The first product of a sum overwrites. True: nothing else does, and it is to be filled."""
    sums = [u for u in uses if u.role == "dst" and u.instruction.accumulate == "auto"]
    if not sums:
        return storage.fill is not None
    rest = [u for u in uses if not _starts_empty(u)]
    started = rest[0].instruction is not sums[0].instruction
    groups: dict = {}
    for use in sums:
        use.instruction.accumulate = True
        groups.setdefault(repr((use.view.shape, [_key(d) for d in use.view.dims])), use)
    if started:
        return storage.fill is not None
    for use in groups.values():
        inside, still = _reduction_loops(use, storage.home)
        outer = {loop.id for loop in still if loop is not inside[0]}
        if outer:
            raise NotAffine(
                outer, "a sum over several loops starts in the first of their iterations"
            )
        use.instruction.accumulate = bool(still)
        use.instruction.overwrite_first = bool(still)
    return False


def _too_deep(trace):
    for loop in trace.loops:
        chain = [around for around in loop.chain() if around.parent is not None]
        if loop.body and len(chain) > 6:
            smallest = min(chain, key=lambda around: (around.count, around.depth))
            raise NotAffine({smallest.id}, f"{len(chain)} loops in one another; six are the most")


def finish(trace):
    _too_deep(trace)
    for uses in by_storage(trace).values():
        split(trace, uses)
    for uses in by_storage(trace).values():
        privatise(trace, uses)
    for uses in by_storage(trace).values():
        storage = uses[0].storage
        if storage.space == "psum":
            needed = settle_sums(storage, uses)
            if needed:
                _fill(trace, storage, uses, storage.fill or 0.0)
        elif storage.fill is not None:
            _fill(trace, storage, uses, storage.fill)


# --- access patterns ------------------------------------------------------------------------------


def _merged(dims):
    """Neighbouring dimensions that are one; at least one is left."""
    out: list = []
    for stride, count in dims:
        if count == 1:
            continue
        if out and out[-1][0] == stride * count:
            out[-1] = [stride, out[-1][1] * count]
        else:
            out.append([stride, count])
    return out or [[1, 1]]


def _check_bounds(view, counts, line):
    for axis, (dim, size) in enumerate(zip(view.dims, view.storage.shape)):
        low, high = dim.bounds(counts)
        if low < 0 or high >= size:
            raise KernelError(
                f"index {low if low < 0 else high} of axis {axis} of {view!r}, which has {size}",
                line,
            )


def pattern(view, counts, line):
    """The operand as the document has it."""
    storage = view.storage
    _check_bounds(view, counts, line)
    total = view.offset()
    out = {"t": storage.id, "off": total.const, "loops": sorted(map(list, total.loops.items()))}
    if storage.space == "hbm":
        out |= {"p": [0, view.shape[0]], "ps": total.coefs[0]}
    else:
        lanes = view.dims[storage.par]
        if lanes.loops:
            raise NotAffine(lanes.loops, "a partition that changes with the iteration")
        steps = [c for c, n in zip(lanes.coefs, view.shape) if n > 1 and c]
        if any(c and n > 1 for c, n in list(zip(lanes.coefs, view.shape))[1:]):
            raise KernelError(f"the partitions of {view!r} lie along a free axis", line)
        if (steps and steps[0] != 1) or (view.shape[0] > 1 and total.coefs[0]):
            raise KernelError(f"partitions of {view!r} with a stride", line)
        if view.shape[0] > 1 and not steps:
            raise KernelError(f"{view!r}: one partition read as {view.shape[0]}", line)
        out |= {"p": [lanes.const, view.shape[0]], "ps": 0}
    out["dims"] = _merged(list(zip(total.coefs, view.shape))[1:])
    if len(out["dims"]) > 4:
        raise KernelError(f"{len(out['dims'])} free dimensions; an instruction has four", line)
    return out


def _instruction(item, counts):
    out = {"op": item.opcode, "line": item.line}
    if item.engine:
        out["engine"] = item.engine
    for key in ("alu", "alu2"):
        if getattr(item, key) != "none":
            out[key] = getattr(item, key)
    if item.activation != "identity":
        out["fn"] = item.activation
    for key in ("imm0", "imm1"):
        if getattr(item, key):
            out[key] = getattr(item, key)
    if item.accumulate:
        out["accumulate"] = True
    if item.overwrite_first:
        out["overwrite_first"] = True
    for role, view in item.operands():
        out[role] = pattern(tile(view), counts, item.line)
    return out


def body_of(loop, counts):
    out = []
    for item in loop.body:
        if isinstance(item, Loop):
            inner = body_of(item, counts)
            if inner:
                out.append(
                    {"loop": item.id, "count": item.count, "kind": item.kind, "line": item.place,
                     "body": inner}
                )  # fmt: skip
        else:
            out.append(_instruction(item, counts))
    return out


def tensor_record(storage):
    free = 1
    for axis, n in enumerate(storage.shape):
        free *= n if storage.space == "hbm" or axis != storage.par else 1
    return {
        "id": storage.id,
        "space": storage.space,
        "kind": storage.kind,
        "name": storage.name,
        "line": storage.line,
        "dtype": storage.dtype.name,
        "shape": list(storage.shape),
        "home": storage.home.id,
        "partitions": 1 if storage.space == "hbm" else storage.shape[storage.par],
        "bytes": free * storage.dtype.itemsize,
    }
