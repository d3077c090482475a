"""A Python program's run in our tools: the report that `trellis report` reads, and the gate of
pytest."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
import trellis_neuron
from fresh import run_python

TRELLIS = os.environ.get("TRELLIS", "trellis")
torch.set_num_threads(1)

GATED = """
import torch, trellis_neuron

def test_step(trellis_gate):
    width = {width}
    model = torch.nn.Linear(width, width).to("neuron")
    with trellis_neuron.simulate("trn2.48xlarge", steps="manual") as run:
        model(torch.ones(4, width, device="neuron")).sum().backward()
    trellis_gate(run)
"""


def run_of(width, tokens_per_step=8):
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trellis_neuron.simulate("trn2.48xlarge", tokens_per_step=tokens_per_step) as run:
        for _ in range(2):
            model(torch.ones(8, width, device="neuron")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def trellis(*args, returncode=0):
    done = subprocess.run([TRELLIS, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == returncode, done.stdout + done.stderr
    return done.stdout


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)


class Saved(Case):
    def test_report_diff_gate_and_cost_read_it(self):
        small = run_of(64).save(self.dir / "small", name="small")
        large = run_of(512).save(self.dir / "large", name="large")
        report = json.loads((small / "report.json").read_text())
        self.assertEqual(report["parameters"], 64 * 64 + 64)
        self.assertGreater((small / "trace.pftrace").stat().st_size, 0)
        self.assertIn("python small: 4,160 parameters", trellis("report", small))
        summary = json.loads(trellis("report", small, "--json"))
        self.assertEqual(len(summary["breakdown"]) if "breakdown" in summary else 1, 1)
        self.assertIn("large", trellis("report", small, large))
        trellis("diff", small, large)
        prices = self.dir / "prices.yaml"
        source = pathlib.Path(__file__).resolve().parents[2] / "examples/prices.yaml"
        prices.write_text(source.read_text())
        trellis("cost", small, "--prices", prices, "--steps", 100)

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "how many tokens"):
            run_of(16, tokens_per_step=None).save(self.dir)


class Gate(Case):
    def pytest(self, *args):
        arguments = ["-q", "-p", "trellis_neuron.pytest_plugin", *args]
        return run_python(
            f"import os, pytest, sys; os.chdir({str(self.dir)!r}); "
            f"sys.exit(pytest.main({arguments!r}))"
        )

    def write(self, width):
        (self.dir / "test_model.py").write_text(GATED.format(width=width))

    def test_a_longer_step_fails(self):
        self.write(256)
        missing = self.pytest()
        self.assertEqual(missing.returncode, 1)
        self.assertIn("--trellis-update-baselines writes it", missing.stdout)
        self.assertEqual(self.pytest("--trellis-update-baselines").returncode, 0)
        self.assertEqual(len(list((self.dir / "trellis_baselines").glob("*.json"))), 1)
        self.assertEqual(self.pytest().returncode, 0)
        self.write(1024)
        longer = self.pytest()
        self.assertEqual(longer.returncode, 1)
        self.assertRegex(longer.stdout, r"step_time_ms: .* the baseline is .* \+\d")
        self.assertIn("peak_memory_bytes", longer.stdout)
        for file in (self.dir / "trellis_baselines").glob("*.json"):
            file.write_text("{")
        self.assertIn("expected a baseline of schema", self.pytest().stdout)


if __name__ == "__main__":
    unittest.main()
