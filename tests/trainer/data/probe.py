"""Asks data_probe. Environment: DATA_PROBE, the program."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DATA_PROBE"]


def probe(**request):
    result = subprocess.run(
        [PROGRAM], input=json.dumps(request), capture_output=True, text=True, timeout=120
    )
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


class Case(unittest.TestCase):
    """With a separate folder."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def refused(self, *texts, **request):
        with self.assertRaises(RuntimeError) as raised:
            probe(**request)
        for text in texts:
            self.assertIn(text, str(raised.exception))
