#!/usr/bin/env python3
"""Every command that the documents show is run, in the order of its page; outputs are compared.

The folder has examples/ and benchmarks/ only. scripts/refresh-outputs puts the outputs of now into
the pages. How blocks are marked: scripts/docs_tools/commands.py.
"""

import difflib
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import unittest

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "scripts"))
from docs_tools import ablation, accuracy, commands, generated  # noqa: E402

OPTION = re.compile(r"add_(?:option|flag)\w*(?:<[^>]*>)?\(\s*\"([^\"]+)\"([^;]*);")
VERB = re.compile(r"add_subcommand\(\s*\"([\w-]+)\"([^;]*);")
HIDDEN = 'group("")'
REPAIR = "if the new text is right: scripts/refresh-outputs"


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder, cache = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(cache.cleanup)
        self.workplace = commands.Workplace(folder.name, TRELLIS, cache.name)

    def assert_same(self, name, expected, got):
        if expected != got:
            self.fail(
                "\n".join(
                    [
                        f"{name} differs; {REPAIR}",
                        *difflib.unified_diff(
                            expected.split("\n"), got.split("\n"), "page", "now", lineterm="", n=1
                        ),
                    ]
                )
            )

    def check(self, *names):
        skipped = 0
        for name in names:
            text = (SOURCE / name).read_text()
            skipped += sum("not run" in block.options for _, block in commands.blocks(text))
            self.assert_same(name, text, commands.refreshed(text, self.workplace))
        print(
            f"{', '.join(names)}: {skipped} blocks are not run, with their reasons", file=sys.stderr
        )


# A class is a test of ctest; `python` of a page's commands is that of .venv.
class Readme(Case):
    def test_page(self):
        self.check("README.md")


class Start(Case):
    def test_page(self):
        self.check("docs/index.md")


class Layout(Case):
    def test_page(self):
        self.check("docs/guides/layout.md")


class Cost(Case):
    def test_page(self):
        self.check("docs/guides/cost.md")


class Limits(Case):
    def test_page(self):
        self.check("docs/guides/limits.md")


class ContinuousIntegration(Case):
    def test_page(self):
        self.check("docs/guides/ci.md")


class Guides(Case):
    def test_traces(self):
        self.check("docs/guides/traces.md")

    def test_pytorch(self):
        self.check("docs/guides/pytorch.md")

    def test_trainer(self):
        self.check("docs/guides/trainer.md")

    def test_checkpoints(self):
        self.check("docs/guides/checkpoints.md")

    def test_clusters(self):
        self.check("docs/guides/clusters.md")

    def test_data(self):
        self.check("docs/guides/data.md")

    def test_fine_tuning(self):
        self.check("docs/guides/fine-tuning.md")

    def test_real_devices(self):
        self.check("docs/guides/real-devices.md")

    def test_migrate(self):
        self.check("docs/guides/migrate.md")

    def test_nki(self):
        self.check("docs/guides/nki.md")


class Others(Case):
    def test_no_page_is_left_out(self):
        checked = (SOURCE / __file__).read_text()
        for page in commands.pages():
            name = str(page.relative_to(SOURCE))
            runs = [
                block
                for _, block in commands.blocks(page.read_text())
                if "not run" not in block.options
            ]
            if runs and f'"{name}"' not in checked:
                self.fail(
                    f"{name}:{runs[0].line}: no test runs its commands: name it in {__file__}"
                )

    def test_planning_begins_with_a_command(self):
        for name in ("layout", "cost", "limits"):
            text = (SOURCE / f"docs/guides/{name}.md").read_text()
            self.assertRegex(
                text, r"\A# [^\n]+\n\n(<!-- [^\n]+ -->\n)?```console\n\$ trellis ", name
            )

    def test_commands_are_in_marked_blocks(self):
        """A block without a language could hide a command from this test."""
        for page in commands.pages():
            fence = None
            for number, line in enumerate(page.read_text().splitlines(), 1):
                if line.lstrip().startswith("```"):
                    fence = line.strip() if fence is None else None
                elif fence == "```" and line.startswith(("$ ", "trellis ")):
                    self.fail(f"{page}:{number}: a command in a block without a language")

    def test_readme_is_short(self):
        text = (SOURCE / "README.md").read_text()
        self.assertLessEqual(len(text.splitlines()), 90)
        for _, block in commands.blocks(text):
            for command, output in block.steps():
                self.assertLessEqual(len(output.splitlines()), 5, command)

    def test_a_changed_output_a_failing_command_and_an_unknown_mark_are_noticed(self):
        good = "```console\n$ echo a; echo b\na\nb\n```\n"
        self.assertEqual(commands.refreshed(good, self.workplace), good)
        self.assertNotEqual(
            commands.refreshed(good.replace("\nb\n", "\nc\n"), self.workplace),
            good.replace("\nb\n", "\nc\n"),
        )
        kept = "<!-- keep 2 -->\n```console\n$ echo a; echo b\n…\nb\n```\n"
        self.assertEqual(commands.refreshed(kept, self.workplace), kept)
        varies = "<!-- output varies: the date -->\n```console\n$ date\ntoday\n```\n"
        self.assertEqual(commands.refreshed(varies, self.workplace), varies)
        with self.assertRaisesRegex(commands.DocumentError, "expected exit code 0, got 3"):
            commands.refreshed("```sh\nexit 3\n```\n", self.workplace)
        commands.refreshed("<!-- exits 3 -->\n```sh\nexit 3\n```\n", self.workplace)
        commands.refreshed("<!-- not run: it fails -->\n```sh\nexit 3\n```\n", self.workplace)
        with self.assertRaisesRegex(commands.DocumentError, "unknown option"):
            commands.refreshed("<!-- keep all -->\n```sh\nexit 3\n```\n", self.workplace)


class Generated(Case):
    def test_pages_are_those_of_the_program(self):
        for path, text in generated.pages(self.workplace).items():
            self.assert_same(str(path.relative_to(SOURCE)), path.read_text(), text)

    def test_the_page_of_commands_has_every_verb_and_option_of_the_sources(self):
        page = generated.site_pages(self.workplace)["reference/commands.md"]
        titles = {line.split()[-1] for line in page.splitlines() if line.startswith("##")}
        options = set(re.findall(r"(?<![\w-])--?[\w-]+", page))
        verbs, named = set(), set()
        for source in sorted((SOURCE / "cli").rglob("*.[ch]*")):
            text = source.read_text()
            if f"verb->{HIDDEN}" in text:
                continue
            verbs |= {name for name, _ in VERB.findall(text)}
            for names, rest in OPTION.findall(text):
                if HIDDEN not in rest:
                    named |= set(re.findall(r"(?<![\w-])--?[\w-]+", names))
        self.assertGreater(len(verbs), 30)
        self.assertGreater(len(named), 100)
        self.assertEqual(verbs - titles, set())
        self.assertEqual(named - options, set())

    def test_the_page_of_features_has_the_cases_of_each(self):
        page = generated.site_pages(self.workplace)["checklist.md"]
        rows = [line for line in page.splitlines() if line.startswith("| ")]
        self.assertGreater(len(rows), 200)
        for row in rows:
            self.assertNotIn("|  |", row)

    def test_the_record_of_accuracy_is_that_of_the_program(self):
        """Of what takes seconds; whole steps are compared with the other record of them."""
        record = accuracy.as_text(accuracy.measure_all(self.workplace, accuracy.QUICK))
        self.assert_same(
            str(accuracy.RECORD.relative_to(SOURCE)), accuracy.RECORD.read_text(), record
        )

    def test_the_record_of_mechanisms_is_that_of_the_program(self):
        """Of what takes seconds."""
        record = json.loads(ablation.RECORD.read_text())
        quick = ("dma", "collectives")
        measured = accuracy.measure_mechanisms(self.workplace, quick)
        self.assertEqual({name: record[name] for name in measured}, measured)
        self.assertTrue(any(row["worse"] for row in measured.values()))
        self.check_begin_of_changes(record)
        subjects = (*accuracy.QUICK, "training")
        expected = {f"{one['set']} {subject}" for one, subject in ablation.pairs(subjects)}
        self.assertEqual(record.keys(), expected)

    def check_begin_of_changes(self, record):
        """All subjects: changes begin with the errors of the record of predictions."""
        predicted = json.loads(accuracy.RECORD.read_text())
        for name, row in record.items():
            errors = ablation.errors(predicted[name.rsplit(" ", 1)[1]])
            for row_id, before, _ in row["worst"]:
                self.assertEqual(before, errors[row_id], (name, row_id))

    def test_a_row_gets_worse_when_its_error_grows(self):
        before = {"a": 0.01, "b": -0.05, "c": 0.1, "only": 0.0}
        without = {"a": -0.04, "b": -0.06, "c": 0.01}
        self.assertEqual(
            ablation.comparison(before, without),
            {
                "rows": 3,
                "median": 0.04,
                "p90": 0.06,
                "worse": 1,
                "better": 1,
                "worst": [["a", 0.01, -0.04]],
            },
        )

    def test_both_records_of_training_agree(self):
        steps = yaml.safe_load(accuracy.VALIDATED.read_text())["steps"]
        training = json.loads(accuracy.RECORD.read_text())["training"]
        judged = {row["id"] for row in training["rows"]}
        self.assertEqual({step["id"] for step in steps}, judged)
        errors = [abs(step["predicted_s"] / step["published_s"] - 1) for step in steps]
        without_family = training["leave_one_family_out"]
        self.assertAlmostEqual(statistics.median(errors), without_family["median"], 3)
        self.assertAlmostEqual(max(errors), without_family["worst"], 3)


if __name__ == "__main__":
    unittest.main()
