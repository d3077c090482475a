#!/usr/bin/env python3
"""The page of `trellis report --html` in headless Chromium: its DOM holds the report's numbers, its
picture is not blank. Environment: TRELLIS."""

import html
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


def colours(png):
    """How many different pixels a PNG of 8 bits per channel holds."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, width, channels = 8, b"", 0, 0
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        if kind == b"IDAT":
            data += body
        at += 12 + size
    raw, row = zlib.decompress(data), width * channels + 1
    # Filtered bytes differ wherever pixels do; that is enough to tell a picture from a blank sheet.
    return len(
        {
            raw[i : i + channels]
            for line in range(0, len(raw), row)
            for i in range(line + 1, line + row, channels)
        }
    )


def significant(value, digits):
    return f"{value:.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)
        for args in (
            [
                "simulate",
                SOURCE / "examples/quickstart.yaml",
                "exp_manager.explicit_log_dir=run",
                "name=a</script><b>name",
                "--html",
                "simulated.html",
            ],
            ["report", "run", "--html", "page.html"],
        ):
            result = subprocess.run(
                [TRELLIS, *map(str, args)], cwd=cls.dir, capture_output=True, text=True, timeout=120
            )
            if result.returncode != 0:
                raise RuntimeError(result.stderr[-2000:])
        cls.report = json.loads((cls.dir / "run/report.json").read_text())

    def chromium(self, *args):
        if CHROMIUM is None:
            self.skipTest(
                "no Chromium: `scripts/setup --tests` installs it where the distribution has it "
                "as a package"
            )
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={self.dir / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=5000",
            "--window-size=1300,1600",
            *args,
            (self.dir / "page.html").as_uri(),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.dir)
        self.assertEqual(result.returncode, 0, result.stderr[-1000:])
        return result.stdout

    def test_dom_holds_the_numbers_of_the_report(self):
        dom = html.unescape(self.chromium("--dump-dom"))
        self.assertIn('data-drawn="true"', dom)
        step = self.report["simulated"]
        self.assertIn(f"{significant(step['step_time_ps'] * 1e-9, 4)} ms", dom)
        self.assertIn(f"{significant(100 * self.report['mfu'], 3)} %", dom)
        for row in step["breakdown"][:1]:
            for key in ("matmul_ps", "bubble_ps", "optimizer_ps"):
                self.assertIn(f"{significant(row[key] * 1e-9, 4)} ms", dom)
        for link in step["links"]:
            self.assertIn(link["name"], dom)
        for program in step["programs"]:
            self.assertIn(program["hash"], dom)
        for name in (
            "schedule",
            "breakdown",
            "memory",
            "memory-timeline",
            "topology",
            "programs",
            "communication",
        ):
            self.assertRegex(dom, f'<section id="{name}"')
        passes = 2 * self.report["num_microbatches"] * self.report["pipeline_model_parallel_size"]
        self.assertEqual(len(re.findall(r"<title>(?:for|back)ward of micro-batch", dom)), passes)

    def test_picture_is_not_blank(self):
        self.chromium(f"--screenshot={self.dir / 'page.png'}")
        self.assertGreater(colours((self.dir / "page.png").read_bytes()), 50)

    def test_simulate_writes_the_same_page(self):
        self.assertEqual(
            (self.dir / "simulated.html").read_text(), (self.dir / "page.html").read_text()
        )

    def test_needs_no_network_and_no_text_leaves_its_place(self):
        page = (self.dir / "page.html").read_text()
        self.assertEqual(
            re.findall(
                r"""(?:src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", page
            ),
            [],
        )
        self.assertEqual(page.count("</script>"), 2, "the name of a run must not end the script")


if __name__ == "__main__":
    unittest.main(verbosity=1)
