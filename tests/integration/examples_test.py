#!/usr/bin/env python3
"""Every example, called as a new user would: `trellis validate X`, `memory X`, `simulate X`,
without another option. Environment: TRELLIS, the program."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
EXAMPLES = sorted(
    file for file in (SOURCE / "examples").rglob("*.yaml") if file.name != "prices.yaml"
)
LARGE = SOURCE / "examples/nxdt/hf_llama3_70B_trn2_config.yaml"


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)

    def trellis(self, *args):
        return subprocess.run(
            [TRELLIS, *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=300
        )

    def check(self, verb, file, *args):
        """Runs, does not fit, or is refused by a feature that this version names with its place;
        never because of the machine."""
        result = self.trellis(verb, file, *args)
        said = result.stdout[-500:] + result.stderr[-2000:]
        self.assertIn(result.returncode, (0, 2, 3), said)
        if result.returncode == 2:
            self.assertRegex(
                result.stderr,
                r"this version validates, but does not support:\n  \S+:\d+:\S+: ",
                said,
            )
        for word in ("logical core size", "logical cores: use --nodes", "ranks per node, but"):
            self.assertNotIn(word, result.stderr)
        return result.returncode

    def test_there_are_some(self):
        self.assertGreaterEqual(len(EXAMPLES), 25)

    def test_each_is_legal_on_its_machine(self):
        for file in EXAMPLES:
            with self.subTest(file.name):
                result = self.trellis("validate", file)
                self.assertEqual(result.returncode, 0, result.stderr[-2000:])

    def test_memory_of_each(self):
        for file in EXAMPLES:
            with self.subTest(file.name):
                self.check("memory", file, "--no-changes")

    def test_a_step_of_each_with_another_core_size_or_machine(self):
        """The files of a machine other than the default; the others' machine is what all other
        tests run on."""
        for file in EXAMPLES:
            if "\ninstance:" in file.read_text():
                with self.subTest(file.name):
                    layers = [
                        "model.num_layers=8",
                        "model.pipeline_cuts=null",
                        "data.global_batch_size=16",
                        f"exp_manager.explicit_log_dir={self.dir / file.stem}",
                    ]
                    self.assertEqual(self.check("simulate", file, *layers), 0)

    def test_the_machine_is_the_files_unless_the_command_names_another(self):
        described = self.trellis(
            "memory",
            LARGE,
            "--no-changes",
            "model.num_layers=4",
            "model.pipeline_cuts=null",
            "data.global_batch_size=16",
        ).stdout
        self.assertIn("on 8 × trn2.48xlarge", described)
        for verb in ("validate", "memory", "simulate"):
            result = self.trellis(verb, LARGE, "--instance", "trn1.32xlarge")
            self.assertEqual(result.returncode, 2)
            self.assertRegex(
                result.stderr,
                r"logical core size: trn1.32xlarge has only 1, got 2; a machine that has it: "
                r"--instance trn2",
            )
            result = self.trellis(verb, LARGE, "--nodes", 4)
            self.assertEqual(result.returncode, 2)
            self.assertIn("use --nodes 8", result.stderr)
            result = self.trellis(verb, LARGE, "trainer.lnc=null", "--instance", "trn1.32xlarge")
            self.assertEqual(result.returncode, 2)
            self.assertIn("or choose a larger machine: --instance trn2.48xlarge or", result.stderr)

    def test_a_machine_that_is_not_there_is_named_with_its_place(self):
        for verb in ("validate", "memory", "simulate"):
            result = self.trellis(verb, LARGE, "instance=trn2.49xlarge")
            self.assertEqual(result.returncode, 2)
            self.assertIn(
                'command line:instance: unknown instance "trn2.49xlarge"; did you mean '
                "trn2.48xlarge?",
                result.stderr,
            )


if __name__ == "__main__":
    unittest.main()
