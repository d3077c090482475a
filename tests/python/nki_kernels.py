"""Kernels of the public kinds, each with inputs and a reference: CASES of (kernel, inputs,
reference, dtypes by name, grid). Written for these tests."""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

BF16 = "bf16"
CASES: dict = {}


def case(reference, *shapes, dtypes=None, grid=(), extra=(), name=""):
    """Inputs are normal numbers of `shapes`, then `extra`."""

    def add(function):
        kernel = function if isinstance(function, nki.Kernel) else nki.jit(function)
        CASES[name or kernel.__name__] = (kernel, shapes, reference, dtypes or {}, grid, extra)
        return function

    return add


def softmax_of(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows(i):
    return i * 128 + nl.arange(128)[:, None]


def output(like, shape=None, dtype=None):
    return nl.ndarray(shape or like.shape, dtype=dtype or like.dtype, buffer=nl.shared_hbm)


# --- elementwise ----------------------------------------------------------------------------------


@case(lambda a, b: a + b, (256, 512), (256, 512))
@case(lambda a, b: a + b, (300, 512), (300, 512), name="add_ragged")
@case(lambda a, b: a + b, (256, 512), (256, 512), dtypes={"a": BF16, "b": BF16}, name="add_bf16")
def add(a, b):
    out, column = output(a), nl.arange(512)[None, :]
    for i in nl.affine_range((a.shape[0] + 127) // 128):
        inside = rows(i) < a.shape[0]
        x = nl.load(a[rows(i), column], mask=inside)
        y = nl.load(b[rows(i), column], mask=inside)
        nl.store(out[rows(i), column], value=x + y, mask=inside)
    return out


@case(lambda a, b: a + b, (256, 1024), (256, 1024), grid=(2, 2))
def add_spmd(a, b):
    out = output(a)
    x = nl.program_id(0) * 128 + nl.arange(128)[:, None]
    y = nl.program_id(1) * 512 + nl.arange(512)[None, :]
    nl.store(out[x, y], value=nl.load(a[x, y]) + nl.load(b[x, y]))
    return out


@case(lambda a: (2.0 - a) * 3.0 - a / 4.0, (128, 256))
def numbers(a):
    x = nl.load(a)
    out = output(a)
    nl.store(out, value=(2.0 - x) * 3.0 - x / 4.0)
    return out


@case(lambda a, b: np.where(a > b, a, b) + np.minimum(a, 0.0), (128, 64), (128, 64))
def selects(a, b):
    x, y = nl.load(a), nl.load(b)
    out = output(a)
    nl.store(out, value=nl.where(x > y, x, y) + nl.minimum(x, 0.0))
    return out


@case(lambda a: a / (1 + np.exp(-a)), (256, 700))
def silu(a):
    out = output(a)
    for i in nl.affine_range(2):
        part = slice(i * 128, (i + 1) * 128)
        x = nl.load(a[part, :])
        e = nisa.activation(op=nl.exp, data=x, scale=-1.0)
        d = nisa.tensor_scalar(data=e, op0=nl.add, operand0=1.0)
        nl.store(out[part, :], value=nl.multiply(x, nisa.reciprocal(data=d)))
    return out


@case(lambda x, s: np.tanh(2 * x + s), (128, 96), (128, 1))
def biased(x, s):
    out = output(x)
    y = nisa.activation(op=nl.tanh, data=nl.load(x), bias=nl.load(s), scale=2.0)
    nl.store(out, value=y)
    return out


def adamw_of(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.999 * np.abs(v) + 0.001 * g * g
    return p - 1e-3 * m / (np.sqrt(v) + 1e-8), m, v


@case(adamw_of, *[(320, 256)] * 4)
def adamw(p, g, m, v):
    outs = [output(p) for _ in range(3)]
    j = nl.arange(256)[None, :]
    for i in nl.affine_range(3):
        on = rows(i) < 320
        pt, gt, mt, vt = (nl.load(t[rows(i), j], mask=on) for t in (p, g, m, v))
        m1 = mt * 0.9 + gt * 0.1
        v1 = nl.abs(vt) * 0.999 + gt * gt * 0.001
        new = pt - m1 * 1e-3 / (nl.sqrt(v1) + 1e-8)
        for o, value in zip(outs, (new, m1, v1)):
            nl.store(o[rows(i), j], value=value, mask=on)
    return tuple(outs)


# --- rows -----------------------------------------------------------------------------------------


@case(softmax_of, (300, 512))
def softmax(a):
    out, j = output(a), nl.arange(512)[None, :]
    for i in nl.affine_range(3):
        on = rows(i) < 300
        x = nl.load(a[rows(i), j], mask=on)
        e = nl.exp(x - nl.max(x, axis=1))
        nl.store(out[rows(i), j], value=e / nl.sum(e, axis=[1]), mask=on)
    return out


@case(softmax_of, (128, 512))
def softmax_fused(a):
    x, out = nl.load(a), output(a)
    low = nisa.tensor_reduce(nl.max, data=x, axis=1, negate=True)
    sums = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    e = nisa.activation_reduce(
        op=nl.exp, data=x, bias=low, scale=1.0, reduce_op=nl.add, reduce_res=sums
    )
    nl.store(out, value=nisa.tensor_scalar(data=e, op0=nl.multiply, operand0=nl.reciprocal(sums)))
    return out


def rms_of(x, g):
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * g


@case(rms_of, (256, 512), (512,))
def rms_norm(x, g):
    out = output(x)
    weight = nl.load(g.reshape((1, 512))[nl.arange(1)[:, None], nl.arange(512)[None, :]])
    for i in nl.affine_range(2):
        part = slice(i * 128, i * 128 + 128)
        a = nl.load(x[part, :])
        mean = nl.sum(nl.square(a), axis=[1]) / 512
        y = nl.multiply(a, nl.rsqrt(mean + 1e-6))
        nl.store(out[part, :], value=y * weight.broadcast_to((128, 512)))
    return out


def layer_of(x, g, b):
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + b


@case(layer_of, (128, 256), (1, 256), (1, 256))
def layer_norm(x, g, b):
    out, a = output(x), nl.load(x)
    mean = nl.mean(a, axis=1)
    y = (a - mean) * nl.rsqrt(nl.var(a, axis=1) + 1e-5)
    nl.store(out, value=y * nl.load(g).broadcast_to((128, 256)) + nl.load(b))
    return out


@case(lambda x: x.reshape(64, 6, 2, 6, 2).mean((2, 4)), (64, 12, 12))
def average_pool(x):
    out = output(x, (64, 6, 6))
    p, i, k, j, n = nl.mgrid[0:64, 0:6, 0:2, 0:6, 0:2]
    nl.store(out, value=nl.sum(nl.load(x)[p, 2 * i + k, 2 * j + n], axis=[2, 4]) / 4)
    return out


@case(lambda x: x.reshape(64, 6, 2, 6, 2).max((2, 4)), (64, 12, 12))
def max_pool(x):
    out = output(x, (64, 6, 6))
    p, i, k, j, n = nl.mgrid[0:64, 0:6, 0:2, 0:6, 0:2]
    nl.store(out, value=nl.max(nl.load(x)[p, 2 * i + k, 2 * j + n], axis=[2, 4]))
    return out


def scan_of(a, b):
    h, out = np.zeros(128), np.zeros(a.shape)
    for t in range(a.shape[1]):
        h = 0.5 * a[:, t] * h + b[:, t]
        out[:, t] = h
    return out


@case(scan_of, (128, 64), (128, 64))
def scan(a, b):
    out = output(a)
    decay = nl.load(a) * 0.5
    y = nisa.tensor_tensor_scan(decay, nl.load(b), initial=0, op0=np.multiply, op1=np.add)
    nl.store(out, value=y)
    return out


@case(scan_of, (128, 64), (128, 64))
def scan_in_pieces(a, b):
    out = output(a)
    last = nl.zeros((128, 1), dtype=nl.float32)
    for i in nl.sequential_range(4):
        part = slice(i * 16, i * 16 + 16)
        decay = nl.load(a[:, part]) * 0.5
        y = nisa.tensor_tensor_scan(decay, nl.load(b[:, part]), last, np.multiply, np.add)
        last[...] = nl.copy(y[:, 15:16])
        nl.store(out[:, part], value=y)
    return out


def rope_of(x, c, s):
    a, b = x[:64], x[64:]
    return np.concatenate([a * c - b * s, b * c + a * s])


@case(rope_of, (128, 256), (64, 256), (64, 256))
def rope(x, c, s):
    out, up, j = output(x), nl.arange(64)[:, None], nl.arange(256)[None, :]
    t, cos, sin = nl.load(x), nl.load(c), nl.load(s)
    y = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    low = nl.copy(t[up + 64, j])
    y[up, j] = nisa.tensor_tensor(t[up, j] * cos, low * sin, op=nl.subtract)
    y[up + 64, j] = nisa.tensor_tensor(low * cos, t[up, j] * sin, op=nl.add)
    nl.store(out, value=y)
    return out


# --- transposes and products ----------------------------------------------------------------------


@case(lambda x: x.reshape(100, 3, 4).transpose(0, 2, 1).reshape(100, 12), (100, 12))
def transpose_in_rows(x):
    out, t = output(x), nl.load(x)
    p = nl.arange(100)[:, None, None]
    i, j = nl.arange(3)[None, :, None], nl.arange(4)[None, None, :]
    y = nl.ndarray((100, 12), dtype=x.dtype)
    y[p, j * 3 + i] = nl.copy(t[p, i * 4 + j])
    nl.store(out, value=y)
    return out


@case(lambda x: x.T, (128, 256))
def transpose_by_array(x):
    out = output(x, (256, 128))
    for i in nl.affine_range(2):
        part = nl.load(x[:, i * 128 : (i + 1) * 128])
        nl.store(out[i * 128 : (i + 1) * 128, :], value=nl.copy(nisa.nc_transpose(part)))
    return out


@case(lambda x: x.T, (96, 64))
def transpose_by_dma(x):
    out = output(x, (64, 96))
    nl.store(out, value=nl.load_transpose2d(x))
    return out


@case(lambda x: x.T, (32, 32))
def transpose_by_vector(x):
    out = output(x)
    nl.store(out, value=nisa.nc_transpose(nl.load(x), engine=nisa.vector_engine))
    return out


def product_of(a, b):
    return a.T @ b


SIDES = ((256, 256), (256, 1024))


def tile_of(t, k, m, width):
    return t[k * 128 : (k + 1) * 128, m * width : (m + 1) * width]


@case(product_of, *SIDES)
@case(product_of, *SIDES, dtypes={"a": BF16, "b": BF16}, name="product_bf16")
def product(a, b):
    out = output(a, (256, 1024))
    for m in nl.affine_range(2):
        for n in nl.affine_range(2):
            acc = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(2):
                x, y = nl.load(tile_of(a, k, m, 128)), nl.load(tile_of(b, k, n, 512))
                acc += nl.matmul(x, y, transpose_x=True)
            nl.store(tile_of(out, m, n, 512), value=nl.copy(acc, dtype=out.dtype))
    return out


@case(product_of, *SIDES)
def product_hoisted(a, b):
    out = output(a, (256, 1024))
    for m in nl.affine_range(2):
        left = nl.ndarray((2, nl.par_dim(128), 128), dtype=a.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(2):
            left[k] = nl.load(tile_of(a, k, m, 128))
        for n in nl.affine_range(2):
            acc = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(2):
                acc += nisa.nc_matmul(left[k], nl.load(tile_of(b, k, n, 512)))
            nl.store(tile_of(out, m, n, 512), value=nl.copy(acc))
    return out


@case(product_of, *SIDES)
def product_k_outside(a, b):
    out = output(a, (256, 1024))
    total = nl.zeros((2, 2, nl.par_dim(128), 512), dtype=nl.float32)
    for k in nl.sequential_range(2):
        for m in nl.affine_range(2):
            x = nl.load(tile_of(a, k, m, 128))
            for n in nl.affine_range(2):
                total[m, n] += nisa.nc_matmul(x, nl.load(tile_of(b, k, n, 512)))
    for m in nl.affine_range(2):
        for n in nl.affine_range(2):
            nl.store(tile_of(out, m, n, 512), value=total[m, n])
    return out


@case(product_of, *SIDES)
def product_lists(a, b):
    """The later dialect: destinations, and Python's lists of tiles."""
    out = output(a, (256, 1024))
    for m in nl.affine_range(2):
        lefts = []
        for k in nl.affine_range(2):
            t = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=tile_of(a, k, m, 128))
            lefts.append(t)
        for n in nl.affine_range(2):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(2):
                t = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=tile_of(b, k, n, 512))
                nisa.nc_matmul(dst=acc, stationary=lefts[k], moving=t)
            done = nl.ndarray((128, 512), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=acc)
            nisa.dma_copy(dst=tile_of(out, m, n, 512), src=done)
    return out


@case(lambda a, b: a @ b, (128, 256), (256, 512))
def product_transposed(a, b):
    out = output(a, (128, 512))
    x = nl.load(a)
    acc = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(2):
        acc += nl.matmul(x[:, k * 128 : (k + 1) * 128], nl.load(b[k * 128 : (k + 1) * 128, :]))
    nl.store(out, value=acc)
    return out


@case(product_of, (512, 128), (512, 300))
def product_over_two_loops(a, b):
    out = output(a, (128, 300))
    j = nl.arange(300)[None, :]
    acc = nl.zeros((128, 300), nl.float32, buffer=nl.psum)
    for o in nl.affine_range(2):
        for k in nl.affine_range(2):
            at = rows(o * 2 + k)
            acc += nisa.nc_matmul(nl.load(a[at, nl.arange(128)[None, :]]), nl.load(b[at, j]))
    nl.store(out, value=nl.copy(acc))
    return out


# --- attention ------------------------------------------------------------------------------------


def attention_of(q, k, v):
    return softmax_of(q.T @ k / np.sqrt(128.0)) @ v.T


@case(attention_of, *[(128, 256)] * 3)
def attention(q, k, v):
    out = output(q, (256, 128))
    ks, vs = nl.load(k), nl.load(v)
    vt = nl.ndarray((nl.par_dim(128), 2, 128), dtype=nl.float32, buffer=nl.sbuf)
    for j in nl.affine_range(2):
        vt[:, j, :] = nisa.nc_transpose(vs[:, nl.ds(j * 128, 128)])
    for i in nl.affine_range(2):
        qi = nl.load(q[:, nl.ds(i * 128, 128)])
        s = nl.copy(nisa.nc_matmul(qi, ks)) * (1 / np.sqrt(128.0))
        e = nl.exp(s - nl.max(s, axis=1))
        acc = nl.zeros((128, 128), nl.float32, buffer=nl.psum)
        for j in nl.affine_range(2):
            et = nl.copy(nisa.nc_transpose(e[:, nl.ds(j * 128, 128)]))
            acc += nisa.nc_matmul(et, vt[:, j, :])
        nl.store(out[nl.ds(i * 128, 128), :], value=nl.copy(acc) / nl.sum(e, axis=1))
    return out


def causal_of(q, k, v):
    s = q.T @ k
    s = np.where(np.arange(128)[:, None] >= np.arange(128)[None, :], s, -9984.0)
    return softmax_of(s) @ v.T


@case(causal_of, *[(64, 128)] * 3)
def attention_causal(q, k, v):
    out = output(q, (128, 64))
    i, j = nl.arange(128)[:, None], nl.arange(128)[None, :]
    s = nisa.nc_matmul(nl.load(q), nl.load(k))
    s = nisa.affine_select(pred=(i >= j), on_true_tile=s, on_false_value=-9984.0)
    e = nl.exp(s - nl.max(s, axis=1))
    o = nl.matmul(e, nl.copy(nisa.nc_transpose(nl.load(v))))
    nl.store(out, value=nl.copy(o) / nl.sum(e, axis=1))
    return out


@case(attention_of, *[(128, 256)] * 3)
def attention_online(q, k, v):
    """Flash attention: one pass over the keys, the running maximum bound anew in Python."""
    out = output(q, (256, 128))
    for i in nl.affine_range(2):
        qi = nl.load(q[:, nl.ds(i * 128, 128)])
        top = nl.full((128, 1), -30000.0, dtype=nl.float32)
        total = nl.zeros((128, 1), dtype=nl.float32)
        acc = nl.zeros((128, 128), dtype=nl.float32)
        for j in nl.sequential_range(2):
            s = nl.copy(nisa.nc_matmul(qi, nl.load(k[:, nl.ds(j * 128, 128)]))) * (128**-0.5)
            new = nl.maximum(top, nl.max(s, axis=1))
            e, keep = nl.exp(s - new), nl.exp(top - new)
            vt = nl.copy(nisa.nc_transpose(nl.load(v[:, nl.ds(j * 128, 128)])))
            part = nl.matmul(e, vt)
            total[...] = nl.add(total * keep, nl.sum(e, axis=1))
            acc[...] = nl.add(acc * keep, part)
            top = new
        nl.store(out[nl.ds(i * 128, 128), :], value=acc / total)
    return out


def attention_gradient_of(q, k, v, d):
    s = softmax_of(q.T @ k)
    dp = d @ v
    ds = s * (dp - (dp * s).sum(1, keepdims=True))
    return (ds @ k.T).T, (q @ ds), (s.T @ d).T


@case(attention_gradient_of, (64, 128), (64, 128), (64, 128), (128, 64))
def attention_backward(q, k, v, d):
    dq, dk, dv = (output(q) for _ in range(3))
    qs, ks, vs, g = nl.load(q) * 1.0, nl.load(k), nl.load(v), nl.load(d)
    s = nl.copy(nisa.nc_matmul(qs, ks))
    e = nl.exp(s - nl.max(s, axis=1))
    p = e / nl.sum(e, axis=1)
    gt = nl.copy(nisa.nc_transpose(g))
    dp = nl.copy(nisa.nc_matmul(gt, vs))
    ds = p * (dp - nl.sum(dp * p, axis=1))
    nl.store(dv, value=nl.copy(nisa.nc_matmul(g, p)))
    dst, kt = nl.copy(nisa.nc_transpose(ds)), nl.copy(nisa.nc_transpose(ks))
    nl.store(dq, value=nl.copy(nisa.nc_matmul(kt, dst)))
    qt = nl.copy(nisa.nc_transpose(qs))
    nl.store(dk, value=nl.copy(nisa.nc_matmul(qt, ds)))
    return dq, dk, dv


@case(lambda a: softmax_of(a @ a.T)[:, :64], (128, 128))
def through_hbm(a):
    """A tensor in HBM that the kernel itself writes and reads."""
    t = nl.load(a)
    scratch = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.hbm)
    nl.store(scratch, value=nl.softmax(nl.copy(nl.matmul(t, nl.transpose(t))), axis=1))
    out = output(a, (128, 64))
    nl.store(out, value=nl.load(scratch[:, 0:64]))
    return out


@case(lambda: 5.0 + 2 * np.arange(128)[:, None] + 3 * np.arange(16)[None, :])
def counting():
    out = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.shared_hbm)
    index = nl.arange(128)[:, None] * 2 + nl.arange(16)[None, :] * 3 + 5
    nl.store(out, value=nisa.iota(index, dtype=nl.float32))
    return out


@case(lambda a, b: (a * 0.5 + b, (a - 1) * b), (128, 64), (128, 64))
def fused_pairs(a, b):
    x, y = nl.load(a), nl.load(b)
    outs = output(a), output(a)
    first = nisa.scalar_tensor_tensor(data=x, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=y)
    nl.store(outs[0], value=first)
    second = nisa.scalar_tensor_tensor(
        data=x, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=y
    )
    nl.store(outs[1], value=second)
    return outs


@case(lambda a: a.reshape(4, 128, 64).max(0), (512, 64))
def loop_reduction(a):
    out = output(a, (128, 64))
    best = nl.ndarray((nl.par_dim(128), 64), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(4):
        x = nl.load(a[i * 128 : (i + 1) * 128, :])
        best[...] = nl.loop_reduce(x, op=np.max, loop_indices=[i])
    nl.store(out, value=best)
    return out
