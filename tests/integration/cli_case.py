"""What the tests of the program share: a folder for each test, runs of the quickstart, errors."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
SHORT = [
    "trainer.max_steps=2",
    "model.encoder_seq_length=32",
    "exp_manager.use_datetime_version=false",
]
# With it a Python program imports trellis_neuron of this build.
PACKAGE = {
    "PYTHONPATH": str(SOURCE / "device/python"),
    "TRELLIS_NEURON_LIBRARY": str(TRELLIS.parents[1] / "lib/libtrellis_neuron.so"),
}


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def trellis(self, *args, env=None, **kwargs):
        return subprocess.run(
            [TRELLIS, *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
            env={**os.environ, "TRELLIS_CACHE": "off", **(env or {})},
            **kwargs,
        )

    def train(self, *args, log="run", env=None):
        return self.trellis(
            "train",
            QUICKSTART,
            *SHORT,
            f"exp_manager.explicit_log_dir={self.dir / log}",
            *args,
            env=env,
        )

    def yaml(self, change):
        """The quickstart file after `change(text)`, in the test's folder."""
        text = change(QUICKSTART.read_text())
        self.assertNotEqual(text, QUICKSTART.read_text(), "the change must change something")
        path = self.dir / "broken.yaml"
        path.write_text(text)
        return path

    def fails(self, result, code, *texts):
        self.assertEqual(result.returncode, code, result.stderr[-2000:])
        self.assertEqual(result.stdout, "")
        for text in texts:
            self.assertIn(text, result.stderr)
        self.assertEqual(list(self.dir.rglob("*.partial")), [])


class CheckedCase(Case):
    """Its runs of the program have the exit code that is asked for."""

    def trellis(self, *args, returncode=0, **kwargs):
        result = super().trellis(*args, **kwargs)
        self.assertEqual(result.returncode, returncode, result.stdout + result.stderr[-3000:])
        return result
