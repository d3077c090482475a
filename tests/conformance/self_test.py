"""Does the harness notice? One-bit differences, crashes, hangs, listed failures that pass. Usage:
self_test.py (no device needed)."""

import os
import pathlib
import signal
import sys
import tempfile
import time
import types
import unittest

import torch

if __name__ == "__main__":  # the device is not what is tested here
    sys.modules["neuron_device"] = types.SimpleNamespace(
        DEVICE=torch.device("cpu"), OTHER_DEVICE=torch.device("cpu")
    )

import case
import compare
import runner
import worker


class Planted:
    """A family whose cases do what their names say."""

    @staticmethod
    def cases():
        return (
            ("passes", "any"),
            ("fails", "any"),
            ("crashes", "any"),
            ("hangs", "any"),
            ("passes again", "any"),
        )

    @staticmethod
    def run(subject, dtype):
        if subject == "fails":
            raise compare.Mismatch("as planted")
        if subject == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if subject == "hangs":
            time.sleep(60)


class Harness(unittest.TestCase):
    def same(self, got, expected):
        compare.same_tensor(got, expected, device="cpu")

    def test_sees_differences(self):
        one = torch.ones(2, 3)
        other = one.clone()
        other[1, 2] = torch.nextafter(other[1, 2], torch.tensor(2.0))
        self.same(one.clone(), one)
        nan = torch.full((2,), float("nan"))
        self.same(nan.clone(), nan)
        for wrong in (
            other,
            one.t().contiguous().t(),
            one.double(),
            one[:1],
            one.clone().requires_grad_(),
            -0.0 * one + 1j,
        ):
            with self.assertRaises(compare.Mismatch):
                self.same(wrong, one)
        with self.assertRaises(compare.Mismatch):
            self.same(torch.tensor(-0.0), torch.tensor(0.0))

    def test_sees_aliasing(self):
        base = torch.ones(4)
        self.assertNotEqual(
            compare.alias_pattern(base[1:], base), compare.alias_pattern(base[1:].clone(), base)
        )
        self.assertNotEqual(compare.alias_pattern(base, base), compare.alias_pattern(base[:], base))

    def test_sees_errors(self):
        for got in (None, ValueError("a"), RuntimeError("b")):
            with self.assertRaises(compare.Mismatch):
                compare.same_error(got, RuntimeError("a"), "", message=True)
        compare.same_error(RuntimeError("on neuron:0"), RuntimeError("on cpu"), "", message=True)

    def test_blames_the_case_that_takes_its_process_down(self):
        runner.WORKER = [sys.executable, __file__, "--worker"]
        cases = [case.Case("planted", *row) for row in Planted.cases()]
        results = runner.run(cases, jobs=2, timeout=3, progress=lambda result: None)
        self.assertEqual(
            [r.status for r in results], ["passed", "failed", "failed", "failed", "passed"]
        )
        self.assertIn("as planted", results[1].message)
        self.assertIn("SIGSEGV", results[2].message)
        self.assertIn("more than 3 s", results[3].message)

    def test_reads_the_list(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "list.yaml")
            path.write_text("- reason: because\n  cases: ['a/*/float32', 'never/*']\n")
            expected = runner.ExpectedFailures(path)
            self.assertEqual(expected.reason(case.Case("a", "b", "float32")), "because")
            self.assertEqual(expected.reason(case.Case("a", "b", "int64")), "")
            self.assertEqual(expected.unused(), ["never/*"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        case.load_families = lambda: case.FAMILIES
        case.FAMILIES["planted"] = Planted
        worker.main()
    else:
        unittest.main(argv=sys.argv[:1])
