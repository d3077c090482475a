"""scripts/pytorch-tests on a made-up checkout: what counts, what is known, what the exit status
is. Usage: pytorch_tests_test.py (needs the built library)."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/pytorch-tests"
GENERIC = """
import os
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase
import torch

class TestPlain(TestCase):
    def test_left_out(self):
        self.fail("no device's test")

class TestTiny(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_passes(self, device, dtype):
        self.assertEqual(torch.ones(2, device=device, dtype=dtype).sum(), 2)

    def test_fails_on_neuron(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_fails_everywhere(self, device):
        self.fail("as planted")

    def test_kills_the_process(self, device):
        if torch.device(device).type != "cpu":
            os.abort()

    def test_fails_too(self, device):
        self.assertNotEqual(torch.device(device).type, "neuron", "as planted")

    def test_skips(self, device):
        self.skipTest("as planted")

    def test_works_after_all(self, device):
        pass

instantiate_device_type_tests(TestTiny, globals())
"""
KNOWN = """
- reason: as planted
  cases:
    - test_tiny/TestTiny/test_fails_on_neuron
    - test_tiny/TestTiny/test_kills_*
    - test_tiny/TestTiny/test_passes_int64
"""


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.checkout = pathlib.Path(self.folder.name)
        (self.checkout / "test/inductor").mkdir(parents=True)
        (self.checkout / "test/test_tiny.py").write_text(GENERIC)
        broken = "import no_such_module\n# instantiate_device_type_tests()\n"
        (self.checkout / "test/test_broken.py").write_text(broken)
        (self.checkout / "test/test_other.py").write_text("import unittest\n")
        (self.checkout / "test/inductor/test_left_out.py").write_text(GENERIC)
        (self.checkout / "known.yaml").write_text(KNOWN)
        (self.checkout / "none.yaml").write_text("[]\n")

    def run_script(self, *arguments):
        command = [sys.executable, str(SCRIPT), str(self.checkout), "-j1", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def known(self, name):
        return "--known", str(self.checkout / name), "--out", str(self.checkout / "out")

    def test_counts_and_judges(self):
        status, out, error = self.run_script(*self.known("known.yaml"))
        self.assertEqual(status, 1)
        self.assertEqual(out.splitlines()[-1].split()[:6], "all 3 3 2 1 50.00%".split())
        self.assertIn("test_broken cannot be read: ModuleNotFoundError", error)
        self.assertIn("NEW FAILURE test_tiny/TestTiny/test_fails_too: AssertionError", out)
        self.assertEqual(out.count("NEW FAILURE"), 1)
        listed = "LISTED BUT DOES NOT FAIL test_tiny/TestTiny/test_passes_int64 (passed)"
        self.assertIn(listed, out)
        record = json.loads((self.checkout / "out/test_tiny.json").read_text())
        rows = {
            row["test"].removeprefix("test_tiny/TestTiny/test_"): row for row in record["tests"]
        }
        self.assertEqual(len(rows), 8)
        self.assertIn("SIGABRT", rows["kills_the_process"]["message"])
        self.assertEqual(rows["fails_on_neuron"]["cpu"], "passed")
        self.assertIn("as planted", rows["fails_everywhere"]["cpu_message"])
        self.judge_again(rows)

    def judge_again(self, rows):
        """The same results, judged by other lists and bars; nothing runs again."""
        status, out, _ = self.run_script(*self.known("none.yaml"))
        self.assertEqual((status, out.count("NEW FAILURE")), (1, 3))
        for name in ("fails_on_neuron", "kills_the_process", "fails_too"):
            rows[name]["status"] = "passed"
        kept = self.checkout / "out/test_tiny.json"
        kept.write_text(json.dumps({"seconds": 1, "tests": list(rows.values())}))
        status, out, _ = self.run_script(*self.known("none.yaml"))
        self.assertEqual(status, 0)
        self.assertEqual(out.splitlines()[-1].split()[:6], "all 6 0 2 1 100.00%".split())
        rows["fails_everywhere"].update(status="failed", cpu="passed")
        rows["skips"].update(status="failed", cpu="passed")  # at most these run again
        kept.write_text(json.dumps({"seconds": 1, "tests": list(rows.values())}))
        known = self.known("none.yaml")
        status, out, _ = self.run_script(*known, "--files", "test_tiny", "--again")
        self.assertEqual(status, 0)
        self.assertEqual(out.splitlines()[-1].split()[:6], "all 6 0 1 1 100.00%".split())
        rows["fails_too"]["status"] = "failed"  # known, but too many of all
        kept.write_text(json.dumps({"seconds": 1, "tests": list(rows.values())}))
        (self.checkout / "known.yaml").write_text("- {reason: planted, cases: ['*']}\n")
        status, out, _ = self.run_script(*self.known("known.yaml"))
        self.assertEqual((status, out.count("NEW FAILURE")), (1, 0))

    def test_wrong_use(self):
        status, out, _ = self.run_script("--list")
        self.assertEqual(status, 0)
        self.assertIn("inductor/test_left_out", out)
        self.assertIn("left out: a compiler", out)
        self.assertNotIn("test_other", out)
        status, _, error = self.run_script("--files", "test_none")
        self.assertEqual(status, 2)
        self.assertIn("test_none", error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
