"""The tests' way to `nki` without LibTorch, as the program's child has it."""

import importlib
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "device" / "python" / "trellis_neuron"
BUILT = FOLDER.parents[2] / "build" / "release" / "bin" / "trellis"
PROGRAM = os.environ.get("TRELLIS", str(BUILT))

if "trellis_neuron" not in sys.modules:
    around = types.ModuleType("trellis_neuron")
    around.__path__ = [str(FOLDER)]
    sys.modules["trellis_neuron"] = around
nki = importlib.import_module("trellis_neuron.nki")
importlib.import_module("trellis_neuron.nki.names").register()
write_trace = importlib.import_module("trellis_neuron.nki.files").write_trace
find_dtype = importlib.import_module("trellis_neuron.nki.dtypes").find


def run(*arguments, **options):
    return subprocess.run(
        [PROGRAM, "kernel", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        **options,
    )


def report(traced, expected=(), *arguments):
    """The program's document of a trace, and its exit code."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        write_trace(traced, folder, expected)
        done = run(folder, "--json", *arguments)
    if not done.stdout:
        return {"error": done.stderr}, done.returncode
    return json.loads(done.stdout), done.returncode
