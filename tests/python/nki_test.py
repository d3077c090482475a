"""NKI kernels without a device: numbers of every kind of kernel, mistakes by line, refusals."""

import re
import unittest
from pathlib import Path

import numpy as np

from nki_package import FOLDER, PROGRAM, find_dtype, nki, report, run, write_trace  # isort: skip
import nki_kernels  # isort: skip
import nki_mistakes  # isort: skip


def values(shapes):
    random = np.random.default_rng(7)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


class Numbers(unittest.TestCase):
    """Each kernel gives its reference's numbers, in shuffled interleavings too, and no mistake is
    seen in it."""

    def check(self, name, case):
        kernel, shapes, reference, dtypes, grid, extra = case
        given = [*values(shapes), *extra]
        traced = (kernel[grid] if grid else kernel).trace(
            given, {}, {k: find_dtype(v) for k, v in dtypes.items()}
        )
        wide = [g.astype(np.float64) if isinstance(g, np.ndarray) else g for g in given]
        expected = reference(*wide)
        expected = expected if isinstance(expected, tuple) else (expected,)
        out, code = report(traced, expected)
        self.assertEqual(out.get("error"), None, name)
        self.assertEqual((out["hazards"], out["refusals"]), ([], []), name)
        self.assertEqual(len(out["outputs"]), len(expected), name)
        for o in out["outputs"]:
            self.assertLessEqual(o["relative_error"], 2**-7 if dtypes else 1e-5, (name, o))
        self.assertTrue(out["interleavings_shuffled"] and out["mistakes_looked_for"], name)
        self.assertEqual(code, 0, name)

    def test_every_kernel(self):
        self.assertGreaterEqual(len(nki_kernels.CASES), 30)
        for name, case in nki_kernels.CASES.items():
            with self.subTest(name):
                self.check(name, case)


class Mistakes(unittest.TestCase):
    """Each is named with the line that `# here` marks."""

    def test_every_mistake(self):
        source = Path(nki_mistakes.__file__).read_text().splitlines()
        self.assertGreaterEqual(len(nki_mistakes.CASES), 30)
        for kernel, shapes, kind in nki_mistakes.CASES:
            with self.subTest(kernel.__name__):
                first = kernel.function.__code__.co_firstlineno
                marked = next(i for i in range(first, len(source) + 1) if "# here" in source[i - 1])
                self.check(kernel, shapes, kind, f"nki_mistakes.py:{marked}")

    def check(self, kernel, shapes, kind, line):
        try:
            traced = kernel.trace(values(shapes), {})
        except nki.KernelError as error:
            self.assertEqual(kind, "traced", str(error))
            self.assertIn(line + ":", str(error))
            return
        out, code = report(traced)
        if kind == "does_not_fit":
            self.assertEqual(code, 3, out)
            self.assertIn(line + ":", out["error"])
            return
        found = [(h["kind"], h["line"]) for h in out["hazards"]]
        found += [("refused", r["line"]) for r in out["refusals"]]
        self.assertIn((kind, line), found, out)
        self.assertEqual(code, 2 if out["refusals"] else 4)


KERNEL = """
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.language as nl

@nki.jit
def double(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(a) * {factor})
    return out

def inputs(seed):
    return [np.random.default_rng(seed).standard_normal((64, 32)).astype(np.float32)]

def reference(a):
    return a * 2
"""


class CommandLine(unittest.TestCase):
    def setUp(self):
        import tempfile

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "k.py"

    def run_kernel(self, text, *arguments):
        self.file.write_text(text)
        return run(self.file, *arguments)

    def test_right_and_wrong_numbers(self):
        done = self.run_kernel(KERNEL.format(factor=2.0))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"right +k.py:8 fp32: relative error 0 of 1e-05")
        self.assertRegex(done.stdout, r"time +[\d.]+ us on the device, bounded by launch")
        done = self.run_kernel(KERNEL.format(factor=2.5))
        self.assertEqual(done.returncode, 5)
        self.assertIn("WRONG", done.stdout)

    def test_a_result_without_a_reference(self):
        text = KERNEL.format(factor=2.0).replace("return a * 2", "return a, a * 2")
        done = self.run_kernel(text)
        self.assertEqual(done.returncode, 2)
        self.assertIn("gives 2 results, the kernel 1", done.stderr)

    def test_inputs_without_a_reference(self):
        text = KERNEL.format(factor=2.0).split("def inputs")[0]
        done = self.run_kernel(text, "--input", "a=100x64:bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no reference", done.stdout)
        done = self.run_kernel(text)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--input", done.stderr)

    def test_bad_input(self):
        texts = {
            "nl.lod(a)": r"k.py:9: nki.language.lod is not supported, the nearest is load",
            "nl.load(a, dtype='flot32')": r"k.py:9: dtype flot32 .*, the nearest is float32",
            "nl.load(a[0:64, 40])": r"k.py:9: index 40 of axis 1",
            "nl.load(a, mask=nl.arange(64)[:, None] > 99)": r"k.py:9: its mask selects nothing",
            "[None for _ in iter(int, 1)]": r"did not end within 1 CPU seconds",
            "1 // 0": r"k.py:9: ZeroDivisionError",
        }
        for text, pattern in texts.items():
            with self.subTest(text):
                source = KERNEL.format(factor="1.0").replace("nl.load(a)", text)
                done = self.run_kernel(source, "--seconds", "1")
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertRegex(done.stderr, pattern)

    def test_more_loops_than_semaphores(self):
        loop = """
    for i in nl.affine_range(3):
        t = nl.load(a)
        for j in nl.affine_range(2):
            acc += nl.copy(nl.matmul(nl.exp(t), t, transpose_x=True))"""
        text = KERNEL.format(factor=1.0).replace(
            "    nl.store(",
            "    acc = nl.zeros((32, 32), dtype=nl.float32)" + loop * 40 + "\n    nl.store(",
        )
        done = self.run_kernel(text, "--numbers", "none")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"double: its loops need \d+ semaphores .* a core has 239")

    def test_files_that_are_no_kernel(self):
        self.assertRegex(run("nowhere.py").stderr, "there is no such file")
        done = self.run_kernel("x = 1\n")
        self.assertRegex(done.stderr, "0 functions with @nki.jit")
        done = self.run_kernel("def f(:\n")
        self.assertRegex(done.stderr, re.compile("SyntaxError"))


class FromPython(unittest.TestCase):
    """Kernels that are called on arrays."""

    def test_values_and_time(self):
        kernel, shapes, reference, *_ = nki_kernels.CASES["add"]
        a, b = values(shapes)
        np.testing.assert_array_equal(kernel(a, b), a + b)
        np.testing.assert_array_equal(nki.simulate(kernel)(a, b), a + b)
        timed = nki.benchmark(warmup=2, iters=10)(kernel)
        timed(a, b)
        latency = timed.benchmark_result.nc_latency
        self.assertEqual(*(latency.get_latency_percentile(p) for p in (50, 99)))
        self.assertGreater(latency.get_latency_percentile(99), 10)

    def test_damaged_documents(self):
        import json
        import tempfile

        kernel, shapes, *_ = nki_kernels.CASES["add"]
        with tempfile.TemporaryDirectory() as folder:
            write_trace(kernel.trace(values(shapes), {}), folder)
            file = Path(folder) / "document.json"
            whole = json.loads(file.read_text())
            for change in (
                lambda d: d.pop("tensors"),
                lambda d: d.update(schema="other/1"),
                lambda d: d["body"][0].update(count=10**12),
                lambda d: d["body"][0]["body"][0]["dst"].update(off=10**9),
                lambda d: d["body"][0]["body"][0]["dst"].update(t=99),
                lambda d: d["body"][0]["body"][0]["dst"].update(p=[100, 128]),
                lambda d: d["body"][0]["body"][0]["src0"].update(loops=[[7, 1]]),
                lambda d: d.update(outputs=[44]),
            ):
                document = json.loads(json.dumps(whole))
                change(document)
                file.write_text(json.dumps(document))
                done = run(folder)
                self.assertEqual(done.returncode, 2, document)
                self.assertIn("document.json", done.stderr)


TEST = """
import numpy as np
from k import double
import pytest

@pytest.mark.parametrize("factor", [2, 3])
def test_double(trellis_kernel_gate, factor):
    x = np.ones((64, 32), np.float32)
    report = trellis_kernel_gate(double, x, reference=lambda a: a * factor)
    assert report["device_time_us"] > 0
"""


class Fixture(unittest.TestCase):
    """pytest's fixture, in a folder of its own."""

    def pytest(self, folder, *arguments):
        import os
        import subprocess
        import sys

        return subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-q", "-p", "trellis_neuron.pytest_plugin",
             "-p", "no:cacheprovider", *arguments],
            cwd=folder, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": f"{FOLDER.parent}:{folder}", "TRELLIS": PROGRAM},
        )  # fmt: skip

    def test_time_and_error(self):
        import json
        import tempfile

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            kernel = KERNEL.format(factor=2.0).replace("from neuronxcc import nki", IMPORT)
            (folder / "k.py").write_text(kernel)
            (folder / "test_k.py").write_text(TEST)
            out = self.pytest(folder, "--trellis-update-baselines", "-k", "2").stdout
            self.assertIn("1 passed", out)
            (baseline,) = (folder / "trellis_baselines").iterdir()
            out = self.pytest(folder).stdout
            self.assertIn("1 failed, 1 passed", out)
            self.assertRegex(out, r"k.py:9: relative error 0.333, at most 1e-05 allowed")
            document = json.loads(baseline.read_text())
            document["device_time_us"] *= 0.9
            baseline.write_text(json.dumps(document))
            out = self.pytest(folder, "-k", "2").stdout
            self.assertRegex(out, r"device_time_us: [\d.]+, the baseline is [\d.]+: \+11.11 %")


IMPORT = "import trellis_neuron.nki.names as n; n.register()\nfrom neuronxcc import nki"


if __name__ == "__main__":
    unittest.main()
