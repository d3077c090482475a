"""Runs tests of one file of PyTorch's `test/` on one device, one line of JSON each way.

Usage: pytorch_worker.py FILE DEVICE (privateuse1 or cpu). The first line out is {"tests": [name …]}
of the device's own test classes, or {"error": text}; then {"test": name} is answered by {"status",
"message", "seconds"}. A name is Class/method without the device, so it is the same on every device.
Its own process, so that a crash or a hang is one test's failure and not the run's.
"""

import gc
import importlib
import json
import os
import pathlib
import sys
import time
import unittest
import warnings

import worker

RECYCLE = 200  # tests between two collections of garbage


def load(path, device):
    """Test name → test, of the classes that PyTorch made for `device`."""
    sys.path[0] = str(path.parent)
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = device
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    import torch

    torch.set_num_threads(1)
    if device != "cpu":
        sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "device/python"))
        import trellis_neuron  # noqa: F401  # registers the device
    from torch.testing._internal import common_device_type, common_utils

    sys.argv = [str(path)]
    if hasattr(common_utils, "parse_cmd_line_args"):
        common_utils.parse_cmd_line_args()
    module = importlib.import_module(path.stem)
    return {
        neutral(name, method, device): (case, method)
        for name, case in vars(module).items()
        if isinstance(case, type) and issubclass(case, common_device_type.DeviceTypeTestBase)
        for method in unittest.defaultTestLoader.getTestCaseNames(case)
    }


def neutral(name, method, device):
    """TestFooPRIVATEUSE1, test_bar_neuron_float32 → TestFoo/test_bar_float32."""
    for known in ("neuron", device) if device != "cpu" else ("cpu",):  # PyTorch writes either
        name = name.removesuffix(known.upper())
        head, found, tail = method.rpartition(f"_{known}")
        if found:
            method = head + tail
            break
    return f"{name.removesuffix(device.upper())}/{method}"


class Outcome(unittest.TestResult):
    """Keeps the first error itself: of a trace, the sentence that matters is hard to find."""

    problem = None

    def keep(self, error):
        while error.__cause__ is not None:  # PyTorch wraps the error of a sample
            error = error.__cause__
        self.problem = self.problem or error

    def addError(self, test, error):
        super().addError(test, error)
        self.keep(error[1])

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.keep(error[1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.keep(error[1])


def run(case, method):
    result = Outcome()
    unittest.TestSuite([case(method)]).run(result)
    if result.problem is not None:
        return "failed", worker.explain(result.problem)
    if result.expectedFailures:
        return "failed as expected", ""  # by PyTorch
    if result.unexpectedSuccesses:
        return "failed", "passes, but PyTorch expects it to fail"
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what tests print is no answer
    warnings.simplefilter("ignore")
    path, device = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    os.chdir(path.parent)
    try:
        tests = load(path, device)
    except BaseException as error:  # SkipTest and SystemExit, too
        answers.write(json.dumps({"error": worker.explain(error)}) + "\n")
        return
    answers.write(json.dumps({"tests": list(tests)}) + "\n")
    for number, line in enumerate(sys.stdin):
        begin = time.monotonic()
        status, message = run(*tests[json.loads(line)["test"]])
        seconds = round(time.monotonic() - begin, 3)
        answers.write(json.dumps({"status": status, "message": message, "seconds": seconds}) + "\n")
        if number % RECYCLE == 0:
            gc.collect()


if __name__ == "__main__":
    main()
