"""What the tests of verbs on simulated runs share: a folder for each class, and its runs."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
PRICES = SOURCE / "examples/prices.yaml"


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)

    @classmethod
    def trellis(cls, *args, env=None):
        return subprocess.run(
            [TRELLIS, *map(str, args)],
            capture_output=True,
            text=True,
            cwd=cls.dir,
            timeout=300,
            env={**os.environ, **(env or {})},
        )

    @classmethod
    def simulate(cls, name, *overrides, config=QUICKSTART):
        result = cls.trellis(
            "simulate", config, f"exp_manager.explicit_log_dir={cls.dir / name}", *overrides
        )
        if result.returncode != 0:
            raise RuntimeError(result.stderr[-2000:])
        return cls.dir / name

    def ok(self, *args, **kwargs):
        result = self.trellis(*args, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return result.stdout

    def document(self, schema, *args):
        document = json.loads(self.ok(*args, "--json"))
        self.assertEqual(document["schema"], schema)
        return document

    def fails(self, code, *args_and_texts, texts=(), env=None):
        result = self.trellis(*args_and_texts, env=env)
        self.assertEqual(result.returncode, code, result.stderr[-2000:] + result.stdout[-500:])
        for text in texts:
            self.assertIn(text, result.stderr + result.stdout)
        return result
