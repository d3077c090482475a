"""Kernels with one mistake each: CASES of (kernel, shapes of the inputs, kind). `# here` marks the
line that has to be named."""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

CASES: list = []


def mistake(kind, *shapes):
    def add(function):
        CASES.append((nki.jit(function), shapes, kind))
        return function

    return add


def output(like, shape=None):
    return nl.ndarray(shape or like.shape, dtype=like.dtype, buffer=nl.shared_hbm)


SQUARE = (128, 128)


# --- never written --------------------------------------------------------------------------------


@mistake("unwritten", SQUARE)
def read_before_its_load(a):
    t, out = nl.ndarray((128, 128), dtype=a.dtype), output(a)
    y = nl.exp(t)  # here
    t[...] = nl.load(a)
    nl.store(out, value=y)
    return out


@mistake("unwritten", (300, 64))
def load_mask_off_by_one(a):
    out, j = output(a), nl.arange(64)[None, :]
    for i in nl.affine_range(3):
        row = i * 128 + nl.arange(128)[:, None]
        t = nl.load(a[row, j], mask=row < 299)
        nl.store(out[row, j], value=t, mask=row < 300)  # here
    return out


@mistake("unwritten", (64, 128))
def uninitialised_lanes(a):
    t, out = nl.ndarray((128, 128), dtype=a.dtype), output(a, (128, 128))
    t[0:64, :] = nl.load(a)
    nl.store(out, value=nl.exp(t))  # here
    return out


@mistake("unwritten", (128, 64))
def uninitialised_columns(a):
    t, out = nl.ndarray((128, 128), dtype=a.dtype), output(a, (128, 1))
    t[:, 0:64] = nl.load(a)
    nl.store(out, value=nl.sum(t, axis=1))  # here
    return out


@mistake("unwritten", SQUARE)
def sum_without_zeros(a):
    acc, out = nl.ndarray((128, 128), dtype=a.dtype), output(a)
    for _ in nl.affine_range(4):
        acc += nl.load(a)  # here
    nl.store(out, value=acc)
    return out


@mistake("unwritten", (256, 128))
def block_never_loaded(a):
    t, out = nl.ndarray((3, nl.par_dim(128), 128), dtype=a.dtype), output(a, (128, 128))
    for k in nl.affine_range(2):
        t[k] = nl.load(a[k * 128 : (k + 1) * 128, :])
    nl.store(out, value=t[0] + t[2])  # here
    return out


@mistake("unwritten", SQUARE)
def hbm_never_written(a):
    scratch, out = nl.ndarray((128, 256), dtype=a.dtype, buffer=nl.hbm), output(a)
    nl.store(scratch[:, 0:128], value=nl.load(a))
    nl.store(out, value=nl.load(scratch[:, 64:192]))  # here
    return out


@mistake("unwritten", SQUARE)
def accumulates_onto_nothing(a):
    t, out = nl.load(a), output(a)
    acc = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=t, moving=t, accumulate=True)  # here
    nl.store(out, value=nl.copy(acc))
    return out


@mistake("unwritten", SQUARE)
def column_of_a_sum_forgotten(a):
    sums, out = nl.ndarray((128, 2), dtype=nl.float32), output(a)
    t = nl.load(a)
    sums[:, 0] = nl.sum(t, axis=1)
    nl.store(out, value=t / sums[:, 1])  # here
    return out


# --- what one iteration has from another ----------------------------------------------------------


@mistake("carried", (512, 64))
def running_mean_in_any_order(a):
    mean, out = nl.zeros((128, 64), dtype=nl.float32), output(a, (128, 64))
    for i in nl.affine_range(4):
        x = nl.load(a[i * 128 : (i + 1) * 128, :])
        half = mean * 0.5  # here
        mean[...] = half + x
    nl.store(out, value=mean)
    return out


@mistake("carried", (128, 64), (128, 64))
def scan_in_any_order(a, b):
    out, last = output(a), nl.zeros((128, 1), dtype=nl.float32)
    for i in nl.affine_range(4):
        part = slice(i * 16, i * 16 + 16)
        x, y = nl.load(a[:, part]), nl.load(b[:, part])
        s = nisa.tensor_tensor_scan(x, y, last, np.multiply, np.add)  # here
        last[...] = nl.copy(s[:, 15:16])
        nl.store(out[:, part], value=s)
    return out


@mistake("carried", (512, 64))
def maximum_of_the_last_iteration(a):
    top, out = nl.full((128, 1), -1e30, dtype=nl.float32), output(a)
    for i in nl.affine_range(4):
        x = nl.load(a[i * 128 : (i + 1) * 128, :])
        y = x - top  # here
        top[...] = nl.max(x, axis=1)
        nl.store(out[i * 128 : (i + 1) * 128, :], value=y)
    return out


@mistake("carried", (128, 256))
def through_hbm_in_any_order(a):
    scratch, out = nl.ndarray((128, 256), dtype=a.dtype, buffer=nl.hbm), output(a)
    nl.store(scratch[:, 0:64], value=nl.load(a[:, 0:64]))
    for i in nl.affine_range(3):
        t = nl.load(scratch[:, nl.ds(i * 64, 64)])  # here
        nl.store(scratch[:, nl.ds(i * 64 + 64, 64)], value=t * 2.0)
    nl.store(out, value=nl.load(scratch))
    return out


# --- sums in PSUM ---------------------------------------------------------------------------------


@mistake("overwritten", (256, 128), (256, 512))
def product_assigned_instead_of_added(a, b):
    out = output(a, (128, 512))
    acc = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(2):
        x, y = nl.load(a[nl.ds(k * 128, 128), :]), nl.load(b[nl.ds(k * 128, 128), :])
        acc[...] = nisa.nc_matmul(x, y)  # here
    nl.store(out, value=nl.copy(acc))
    return out


@mistake("overwritten", (256, 128), (256, 512))
def wrong_accumulate_flag(a, b):
    out = output(a, (128, 512))
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(2):
        x, y = nl.load(a[nl.ds(k * 128, 128), :]), nl.load(b[nl.ds(k * 128, 128), :])
        nisa.nc_matmul(dst=acc, stationary=x, moving=y, accumulate=False)  # here
    nl.store(out, value=nl.copy(acc))
    return out


@mistake("overwritten", SQUARE, SQUARE)
def two_products_in_one_tile(a, b):
    x, y, out = nl.load(a), nl.load(b), output(a)
    acc = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    acc[...] = nisa.nc_matmul(x, y)
    acc[...] = nisa.nc_matmul(y, x)  # here
    nl.store(out, value=nl.copy(acc))
    return out


# --- stores ---------------------------------------------------------------------------------------


@mistake("missing_store", (256, 64))
def half_of_the_output(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)  # here
    nl.store(out[0:128, :], value=nl.load(a[0:128, :]))
    return out


@mistake("missing_store", (300, 64))
def store_mask_off_by_one(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)  # here
    for i in nl.affine_range(3):
        row, j = i * 128 + nl.arange(128)[:, None], nl.arange(64)[None, :]
        nl.store(out[row, j], value=nl.load(a[row, j], mask=row < 300), mask=row < 299)
    return out


@mistake("missing_store", SQUARE)
def one_of_two_outputs(a):
    first = output(a)
    second = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.shared_hbm)  # here
    nl.store(first, value=nl.load(a))
    return first, second


# --- what the core refuses ------------------------------------------------------------------------


@mistake("refused", SQUARE)
def partition_that_no_access_starts_at(a):
    t, out = nl.load(a), output(a, (64, 128))
    nl.store(out, value=nl.exp(t[48:112, :]))  # here
    return out


@mistake("refused", (128, 512))
def product_across_banks(a):
    t, out = nl.load(a), output(a, (128, 512))
    acc = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
    acc[:, 256:768] = nisa.nc_matmul(t[:, 0:128], t)  # here
    nl.store(out, value=nl.copy(acc[:, 256:768]))
    return out


@mistake("refused", SQUARE)
def gpsimd_reads_psum(a):
    t, out = nl.load(a), output(a)
    acc = nisa.nc_matmul(t, t)
    y = nisa.tensor_scalar(data=acc, op0=nl.add, operand0=1.0, engine=nisa.gpsimd_engine)  # here
    nl.store(out, value=y)
    return out


@mistake("refused", SQUARE)
def product_that_is_no_fp32(a):
    t, out = nl.load(a), output(a)
    acc = nl.ndarray((128, 128), nl.bfloat16, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=t, moving=t)  # here
    nl.store(out, value=nl.copy(acc, dtype=nl.float32))
    return out


@mistake("does_not_fit", (128, 40000))
def more_than_sbuf(a):
    out = output(a)
    t = nl.load(a)
    nl.store(out, value=nl.exp(t))  # here
    return out


@mistake("does_not_fit", (128, 512))
def more_than_psum(a):
    t, out = nl.load(a), output(a, (128, 512))
    acc = nl.ndarray((nl.par_dim(128), 9, 512), nl.float32, buffer=nl.psum)
    for i in nl.affine_range(9):
        acc[:, i, :] = nisa.nc_matmul(t[:, 0:128], t)  # here
    nl.store(out, value=nl.sum(acc, axis=1))
    return out


# --- what cannot be traced ------------------------------------------------------------------------


@mistake("traced", (256, 64))
def more_than_128_rows(a):
    t = nl.load(a)  # here
    return t


@mistake("traced", SQUARE)
def tile_of_129_partitions(a):
    t = nl.ndarray((nl.par_dim(129), 4), dtype=a.dtype, buffer=nl.sbuf)  # here
    return t


@mistake("traced", (128, 1024))
def more_than_512_columns(a):
    t = nl.load(a)
    return nisa.nc_matmul(t[:, 0:128], t)  # here


@mistake("traced", (128, 64), (64, 64))
def contractions_that_differ(a, b):
    return nisa.nc_matmul(nl.load(a), nl.load(b))  # here


@mistake("traced", (128, 64))
def index_past_the_end(a):
    out = output(a)
    t = nl.load(a[nl.arange(128)[:, None], nl.arange(64)[None, :] + 1])  # here
    nl.store(out, value=t)
    return out


@mistake("traced", (128, 64), (128, 32))
def shapes_that_differ(a, b):
    return nl.load(a) + nl.load(b)  # here


@mistake("traced", (128, 64))
def reduction_over_partitions(a):
    return nl.sum(nl.load(a), axis=0)  # here


@mistake("traced", (64, 64))
def vector_transpose_too_large(a):
    return nisa.nc_transpose(nl.load(a), engine=nisa.vector_engine)  # here


@mistake("traced", (128, 64))
def mask_that_selects_nothing(a):
    return nl.load(a, mask=nl.arange(128)[:, None] >= 128)  # here


@mistake("traced", (128, 128))
def mask_that_is_a_triangle(a):
    i, j = nl.arange(128)[:, None], nl.arange(128)[None, :]
    return nl.load(a[i, j], mask=i >= j)  # here


@mistake("traced", (128, 64))
def function_that_is_not_there(a):
    return nl.softmaxx(nl.load(a), axis=1)  # here


@mistake("traced", (128, 64))
def instruction_that_is_not_there(a):
    return nisa.nc_stream_shuffle(nl.load(a), 1)  # here


@mistake("traced", (128, 64))
def computes_in_hbm(a):
    nl.store(output(a), value=nl.load(nl.load(a)))  # here
