#!/usr/bin/env python3
"""The page of `trellis sweep --html` in headless Chromium: its DOM holds the sweep's rows, a click
sorts them, its picture is not blank. Environment: TRELLIS."""

import html
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from report_page_test import CHROMIUM, SOURCE, TRELLIS, colours, significant

SPACE = [
    SOURCE / "examples/quickstart.yaml",
    "--chips",
    4,
    "--only",
    "mbs=2",
    "--only",
    "zero1=true",
    "--only",
    "recompute=none",
    "--only",
    "tp=2,4",
    "--only",
    "vpp=1",
    "--only",
    "sp=true",
    "--top",
    2,
]


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)
        result = subprocess.run(
            [TRELLIS, "sweep", *map(str, SPACE), "--json", "--html", "page.html"],
            cwd=cls.dir,
            capture_output=True,
            text=True,
            timeout=250,
        )
        if result.returncode != 0:
            raise RuntimeError(result.stderr[-2000:])
        cls.sweep = json.loads(result.stdout)
        cls.page = (cls.dir / "page.html").read_text()

    def chromium(self, page, *args):
        if CHROMIUM is None:
            self.skipTest(
                "no Chromium: `scripts/setup --tests` installs it where the distribution has it "
                "as a package"
            )
        (self.dir / "shown.html").write_text(page)
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
            (self.dir / "shown.html").as_uri(),
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.dir)
        self.assertEqual(result.returncode, 0, result.stderr[-1000:])
        return result.stdout

    def layouts(self, dom):
        """The rows of the table of layouts, as texts of cells."""
        section = re.search(r'<section id="layouts">.*?</section>', dom, re.S).group(0)
        return [
            [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", section.split("<tbody>")[1], re.S)
        ]

    def test_dom_holds_every_row_of_the_sweep(self):
        dom = self.chromium(self.page, "--dump-dom")
        self.assertIn('data-drawn="true"', dom)
        shown = {(row[0], row[2]): row for row in self.layouts(dom)}
        self.assertEqual(len(shown), len(self.sweep["rows"]))
        simulated = [row for row in self.sweep["rows"] if row["step_time_ps"] is not None]
        self.assertGreaterEqual(len(simulated), 2)
        for row in simulated:
            cells = shown[row["layout"], row["status"]]
            self.assertEqual(cells[3], f"{significant(row['step_time_ps'] * 1e-9, 4)} ms")
            self.assertEqual("exploratory" in cells[4], row["validity"] == "exploratory")
            self.assertEqual(cells[10], "*" if row["pareto"] else "")
        for row in self.sweep["rows"]:
            if row["status"] == "illegal":
                self.assertEqual(shown[row["layout"], "illegal"][11], row["reason"])
        self.assertEqual(len(re.findall(r"<circle", dom)), len(simulated))
        for row in simulated:
            self.assertEqual(dom.count(f"<title>{row['layout']}, 1 nodes:"), 1)
        fastest = min(simulated, key=lambda row: row["step_time_ps"])
        self.assertIn(fastest["command"], html.unescape(dom))

    def test_rows_begin_with_the_fastest_and_a_click_sorts_them(self):
        steps = [
            float(row[3].split()[0])
            for row in self.layouts(self.chromium(self.page, "--dump-dom"))
            if row[3]
        ]
        self.assertEqual(steps, sorted(steps))
        click = 'document.querySelectorAll("#layouts th")[7].click();'  # peak memory, most first
        rows = self.layouts(
            self.chromium(
                self.page.replace(
                    'document.body.dataset.drawn = "true";',
                    click + 'document.body.dataset.drawn = "true";',
                ),
                "--dump-dom",
            )
        )
        by_layout = {
            row["layout"]: row["peak_bytes"]
            for row in self.sweep["rows"]
            if row["step_time_ps"] is not None
        }
        peaks = [by_layout[row[0]] for row in rows if row[3]]
        self.assertEqual(peaks, sorted(peaks, reverse=True))

    def test_picture_is_not_blank(self):
        self.chromium(self.page, f"--screenshot={self.dir / 'page.png'}")
        self.assertGreater(colours((self.dir / "page.png").read_bytes()), 30)

    def test_needs_no_network(self):
        self.assertEqual(
            re.findall(
                r"""(?:src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", self.page
            ),
            [],
        )
        self.assertEqual(self.page.count("</script>"), 2)


if __name__ == "__main__":
    unittest.main(verbosity=1)
