"""Asks checkpoint_probe. Environment: CHECKPOINT_PROBE, the program."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["CHECKPOINT_PROBE"]


def probe(*arguments, environment=None):
    """What the program says: JSON, or None. Raises RuntimeError with its error."""
    result = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(environment or {})},
    )
    if result.returncode != 0:
        raise RuntimeError(f"exit {result.returncode}: {result.stderr}")
    return json.loads(result.stdout) if result.stdout else None


class Case(unittest.TestCase):
    """With its own folder."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def refused(self, *arguments, texts=()):
        with self.assertRaises(RuntimeError) as raised:
            probe(*arguments)
        for text in texts:
            self.assertIn(text, str(raised.exception))
