"""A Python too old and a torch of another version are refused by name, before torch or a library is
loaded."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import trellis_neuron._versions as versions

PACKAGE = Path(versions.__file__).resolve().parent.parent


def import_with(stubs, prologue=""):
    """Imports the package where only `stubs` (path: text) and the package are to be found."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in stubs.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{PACKAGE}"}
        return subprocess.run(
            [sys.executable, "-S", "-c", prologue + "\nimport trellis_neuron"],
            env=environment,
            capture_output=True,
            text=True,
        )


TORCH_THAT_MUST_NOT_LOAD = "raise SystemExit('torch was loaded')"


class Refusals(unittest.TestCase):
    def expect(self, done, *texts):
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ImportError: trellis_neuron: expected", done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_another_torch(self):
        stubs = {
            "torch/__init__.py": TORCH_THAT_MUST_NOT_LOAD,
            "torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.9.1+cpu\n",
        }
        self.expect(
            import_with(stubs), "expected torch 2.13.0, got 2.9.1+cpu", "pip install torch==2.13.0"
        )

    def test_another_torch_that_is_loaded_already(self):
        done = import_with({"torch/__init__.py": "__version__ = '2.14.0'"}, "import torch")
        self.expect(done, "expected torch 2.13.0, got 2.14.0")

    def test_no_torch(self):
        self.expect(import_with({}), "torch is not installed")

    def test_old_python(self):
        stubs = {"torch/__init__.py": TORCH_THAT_MUST_NOT_LOAD}
        done = import_with(stubs, "import sys\nsys.version_info = (3, 9, 18, 'final', 0)")
        self.expect(done, "expected Python 3.10 or later, got 3.9")

    def test_old_python_can_parse_the_check(self):
        import ast

        for name in ("__init__.py", "_versions.py"):
            ast.parse((PACKAGE / "trellis_neuron" / name).read_text(), feature_version=(3, 7))

    def test_this_torch_is_accepted(self):
        versions.check((3, 10), "2.13.0")
        versions.check((3, 14), "2.13.0+cpu")


class Libraries(unittest.TestCase):
    def test_missing_library(self):
        environment = {**os.environ, "TRELLIS_NEURON_LIBRARY": "/nowhere/libtrellis_neuron.so"}
        done = subprocess.run(
            [sys.executable, "-c", "import trellis_neuron"],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "ImportError: trellis_neuron: TRELLIS_NEURON_LIBRARY=/nowhere/libtrellis_neuron.so",
            done.stderr,
        )

    def test_another_device(self):
        code = "import torch; torch.utils.rename_privateuse1_backend('foo'); import trellis_neuron"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("PrivateUse1 belongs to another device in this process: foo", done.stderr)


if __name__ == "__main__":
    unittest.main()
