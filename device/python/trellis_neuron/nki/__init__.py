"""NKI kernels without a device: `@nki.jit` functions are traced and run on the emulated core.

A kernel runs once as ordinary Python over symbolic tensors; loops stay loops where their bodies are
affine in the counter. The trace is one document, which the program `trellis` reads
(device/kernels/nki/document.h):

    {"schema": "trellis.nki_trace/1", "kernel": name, "instructions": n, "unrolled": [place, …],
     "tensors": [{"id", "space": hbm|sbuf|psum, "kind": input|output|scratch|const|tile, "name",
                  "line", "dtype", "shape", "home": loop, "partitions", "bytes": of a partition, or
                  of the tensor in HBM, "file": of the values, if there are any}],
     "body": [instruction or {"loop": id, "count", "kind": affine|sequential, "line", "body"}],
     "outputs": [tensor], "expected": [{"tensor", "file": of fp64, "shape"}]}

An instruction has "op", "engine", "alu", "alu2", "fn", "imm0", "imm1", "accumulate" and
"overwrite_first" as sim/isa/types.h defines them, and operands "dst", "src0", "src1", "dst1":
    {"t": tensor, "p": [first partition, partitions], "ps": elements from one to the next in HBM,
     "off": elements, "loops": [[loop, elements an iteration], …], "dims": [[stride, count], …]}
"matmul" has the stationary operand in src0 and the moving one in src1."""

from . import compiler, isa, language, typing
from .errors import KernelError
from .kernel import Kernel, jit
from .program import Benchmark

trace = jit


def simulate(kernel=None, **_options):
    """The kernel itself: calls on arrays run on the emulated core."""
    return jit(kernel) if kernel is not None else jit


baremetal = simulate_kernel = simulate


def benchmark(kernel=None, **_options):
    """Calls are timed; `benchmark_result.nc_latency.get_latency_percentile(99)` in microseconds."""
    if kernel is None:
        return lambda k: Benchmark(jit(k))
    return Benchmark(jit(kernel))


profile = benchmark

__all__ = [
    "Kernel",
    "KernelError",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate",
    "simulate_kernel",
    "trace",
    "typing",
]
