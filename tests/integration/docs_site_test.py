#!/usr/bin/env python3
"""The site builds strictly, without network; a broken link fails it; there is one version."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)


class Site(Case):
    def test_the_site_builds_and_its_pages_are_there(self):
        done = subprocess.run(
            [SOURCE / "scripts/docs", self.folder / "site"],
            env={**os.environ, "TRELLIS": str(TRELLIS)},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for page in (
            "index",
            "guides/ci",
            "guides/layout",
            "guides/cost",
            "guides/limits",
            "reference/commands",
            "reference/keys",
            "checklist",
            "accuracy",
            "architecture",
            "changes",
        ):
            text = (self.folder / f"site/{page}.html").read_text()
            self.assertNotIn("8&lt;--", text)
            self.assertIn("<h1", text)

    def test_a_broken_link_fails(self):
        shutil.copytree(SOURCE / "docs", self.folder / "docs")
        with open(self.folder / "docs/index.md", "a") as page:
            page.write("\n[nowhere](guides/nowhere.md)\n")
        (self.folder / "mkdocs.yml").write_text(
            f"INHERIT: {SOURCE}/mkdocs.yml\n"
            f"hooks: [{SOURCE}/scripts/docs_tools/site_hook.py]\n"
            f"docs_dir: {self.folder}/docs\nsite_dir: {self.folder}/site\n"
        )
        mkdocs = pathlib.Path(sys.executable).parent / "mkdocs"
        done = subprocess.run(
            [mkdocs, "build", "--strict", "--config-file", self.folder / "mkdocs.yml"],
            cwd=SOURCE,
            env={**os.environ, "TRELLIS": str(TRELLIS)},
            capture_output=True,
            text=True,
        )
        self.assertNotEqual(done.returncode, 0)
        found = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
        self.assertEqual(len(found), 1, done.stderr)
        self.assertIn("guides/nowhere.md", found[0])

    def test_the_tree_has_no_page_that_the_site_writes(self):
        """A page in both would show the older text, and be a second source."""
        sys.path.insert(0, str(SOURCE / "scripts"))
        from docs_tools import commands, generated

        pages = generated.site_pages(commands.Workplace(self.folder, TRELLIS, self.folder))
        self.assertEqual([name for name in pages if (SOURCE / "docs" / name).exists()], [])


class Version(Case):
    def test_every_place_has_that_of_the_project(self):
        version = re.search(
            r"^project\(trellis VERSION (\d+\.\d+\.\d+)\b",
            (SOURCE / "CMakeLists.txt").read_text(),
            re.M,
        )[1]
        printed = subprocess.run(
            [TRELLIS, "--version"], capture_output=True, text=True, check=True
        ).stdout
        self.assertEqual(printed.splitlines()[0], f"trellis {version}")
        library = (TRELLIS.parents[1] / "lib/libtrellis_neuron.so").read_bytes()
        self.assertIn(f"trellis-emulator {version}".encode(), library)
        sys.path.insert(0, str(SOURCE / "device/python"))
        import wheel_backend

        self.assertEqual(wheel_backend.version(), version)
        newest = re.search(
            r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d|not yet released)$",
            (SOURCE / "CHANGELOG.md").read_text(),
            re.M,
        )
        self.assertEqual(newest[1], version)

    def test_no_other_file_has_a_number(self):
        version = re.search(
            r"^project\(trellis VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(), re.M
        )[1]
        places = [
            SOURCE / "device/python/pyproject.toml",
            SOURCE / "device/plugin.h",
            *SOURCE.glob("cli/*.cpp"),
            *SOURCE.glob("device/aten/hooks/*.cpp"),
            *SOURCE.glob("device/python/**/*.py"),
        ]
        for place in places:
            self.assertNotRegex(
                place.read_text(), rf"(trellis\S*[ -]|version = \"){re.escape(version)}", place
            )


if __name__ == "__main__":
    unittest.main()
