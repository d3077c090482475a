"""Kernels on arrays, by the program `trellis`: values, and the time on the device."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import dtypes
from .errors import KernelError
from .files import write_trace

PROGRAM = "TRELLIS"


def find_program() -> str:
    """$TRELLIS, the one in PATH, or a build of the source tree."""
    named = os.environ.get(PROGRAM)
    build = Path(__file__).resolve().parents[4] / "build" / "release" / "bin" / "trellis"
    for path in (named, shutil.which("trellis"), str(build)):
        if path and os.access(path, os.X_OK):
            return path
    raise KernelError(f"the program trellis is not in PATH; {PROGRAM} names it", "nki")


def execute(traced, instance="", numbers=True, expected=None):
    """(outputs, report) of a trace; `expected`: the reference's arrays."""
    with tempfile.TemporaryDirectory(prefix="trellis-nki-") as folder:
        write_trace(traced, folder, expected)
        command = [find_program(), "kernel", "run", folder, "--json"]
        if instance:
            command += ["--instance", instance]
        if not numbers:
            command += ["--numbers", "none"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.stdout:
            raise KernelError(done.stderr.strip(), traced.trace.place)
        report = json.loads(done.stdout)
        outputs = []
        for out in traced.outputs:
            file = Path(folder) / f"result{out.storage.id}.bin"
            data = file.read_bytes() if file.is_file() else None
            outputs.append(None if data is None else dtypes.from_bytes(data, out.dtype, out.shape))
    return outputs, report


def simulated(kernel, args, kwargs):
    outputs, report = execute(kernel.trace(args, kwargs))
    for hazard in report["hazards"]:
        print(f"{hazard['line']}: {hazard['text']}")
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Latency:
    """All executions take the same time: so do all percentiles."""

    def __init__(self, microseconds):
        self.microseconds = microseconds

    def get_latency_percentile(self, _percentile):
        return self.microseconds


class BenchmarkResult:
    def __init__(self, report):
        self.report = report
        self.nc_latency = self.device_latency = Latency(report["device_time_us"])


class Benchmark:
    """A kernel whose calls are timed: `benchmark_result` after one."""

    def __init__(self, kernel):
        self.kernel, self.benchmark_result = kernel, None

    def __getitem__(self, grid):
        self.kernel = self.kernel[grid]
        return self

    def __call__(self, *args, **kwargs):
        outputs, report = execute(self.kernel.trace(args, kwargs))
        self.benchmark_result = BenchmarkResult(report)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
