#!/usr/bin/env python3
"""`trellis validate` as its users meet it: what it prints, its JSON document, its exit codes, and
that it loads no LibTorch."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
EXAMPLES = SOURCE / "examples/nxdt"
LLAMA = EXAMPLES / "hf_llama3_70B_trn2_config.yaml"


def validate(*args):
    return subprocess.run(
        [TRELLIS, "validate", *map(str, args)], capture_output=True, text=True, timeout=60
    )


class Legal(unittest.TestCase):
    def test_every_example(self):
        files = sorted(EXAMPLES.glob("*.yaml"))
        self.assertEqual(len(files), 22)
        runs = [
            file for file in (SOURCE / "examples").glob("*.yaml") if file.name != "prices.yaml"
        ]  # that one is for `trellis cost`
        for file in [*files, *runs]:
            with self.subTest(file=file.name):
                result = validate(file)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertTrue(result.stdout.startswith(f"{file}: legal\n"))

    def test_prints_what_will_be_built(self):
        text = validate(LLAMA).stdout
        for piece in (
            "80 layers, hidden 8192",
            "70,553,706,496",
            "TP 32 × PP 4 × DP 4",
            "256 micro-batches; 8,388,608 tokens per step",
            "bubble 1.2 %",
            "19 (0–18)",
            "21 each",
            "[0, 32, 64, 96]",
            "adamw, lr 1.5e-05",
            "fp32 master weights",
        ):
            self.assertIn(piece, text)

    def test_json(self):
        report = json.loads(validate(LLAMA, "--json").stdout)
        self.assertEqual(
            (report["schema"], report["ok"], report["problems"]), ("trellis.validate/2", True, [])
        )
        plan = report["plan"]
        self.assertEqual([stage["end_layer"] for stage in plan["stages"]], [19, 40, 61, 80])
        self.assertEqual(plan["groups"]["PP"]["replica_groups"][0], [0, 128, 256, 384])
        self.assertEqual(
            (plan["parameters"], plan["num_microbatches"], plan["dp"]), (70553706496, 256, 4)
        )
        self.assertEqual(report["unsupported"], [])

    def test_resolved_form_is_legal_and_builds_the_same(self):
        plan = json.loads(validate(LLAMA, "--json").stdout)["plan"]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "resolved.yaml"
            file.write_text(plan["resolved_yaml"])
            self.assertEqual(json.loads(validate(file, "--json").stdout)["plan"], plan)

    def test_lists_what_is_not_supported_and_warns(self):
        self.assertIn(
            "context_parallel_size: context parallelism (context_parallel_size 2) with experts "
            "that drop tokens",
            validate(
                EXAMPLES / "hf_mixtral_8x7b_config.yaml",
                "distributed_strategy.context_parallel_size=2",
                "model.fusions={ring_attention: true, flash_attention: false}",
            ).stdout,
        )
        self.assertIn(
            "constant_steps: 80000 leaves no step",
            validate(EXAMPLES / "megatron_gpt_config.yaml").stdout,
        )

    def test_keys_without_effect_are_listed_with_the_reason(self):
        text = validate(LLAMA).stdout
        self.assertIn("\nwithout effect:\n", text)
        self.assertRegex(
            text, r"  compiler_flags \(line \d+\), compiler_cache_url \(line \d+\): the emulator"
        )
        self.assertRegex(
            text,
            r"  exp_manager\S+\.use_master_weights_in_ckpt \(line \d+\): master",
        )
        rows = {
            row["key"]: row["why"]
            for row in json.loads(validate(LLAMA, "precision.fp32_grads_cc=true", "--json").stdout)[
                "without_effect"
            ]
        }
        self.assertIn("NxDT does not read it either", rows["precision.fp32_grads_cc"])
        text = validate(
            SOURCE / "examples/quickstart.yaml", "data.eod_mask_loss=true", "data.drop_last=false"
        ).stdout
        self.assertIn(
            "data.eod_mask_loss: has no effect: only indexed data (data_prefix) read it", text
        )
        self.assertIn("data.drop_last: has no effect: only dataloader_type cyclic reads it", text)

    def test_loads_no_libtorch(self):
        libraries = subprocess.run(
            ["ldd", TRELLIS], capture_output=True, text=True, check=True
        ).stdout
        self.assertNotIn("torch", libraries)


class Illegal(unittest.TestCase):
    def test_every_mistake_in_one_pass(self):
        result = validate(
            LLAMA,
            "model.num_layers=3",
            "model.pipeline_cuts=null",
            "distributed_strategy.sequence-parallel=true",
            "trainer.max_step=5",
        )
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        for piece in (
            "3 layers are too few",
            "`sequence_parallel`",
            "did you mean `max_steps`?",
            "problems\n",
        ):
            self.assertIn(piece, result.stderr)

    def test_places(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "broken.yaml"
            file.write_text(LLAMA.read_text().replace("seed: 1234", "seed: -1"))
            result = validate(file)
        self.assertIn(f"{file}:6:seed: must be greater than 0, got -1", result.stderr)

    def test_json(self):
        result = validate(LLAMA, "seed=0", "--json")
        report = json.loads(result.stdout)
        self.assertEqual((result.returncode, report["ok"]), (2, False))
        self.assertEqual(
            report["problems"],
            [
                {
                    "file": "command line",
                    "key": "seed",
                    "expected": "greater than 0",
                    "got": "0",
                    "text": "command line:seed: must be greater than 0, got 0",
                }
            ],
        )

    def test_problems_have_fields_in_json_junit_and_sarif(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            good, bad, broken = LLAMA, folder / "bad.yaml", folder / "no & yaml.yaml"
            bad.write_text(
                LLAMA.read_text()
                .replace("seed: 1234", "seed: -1")
                .replace("max_steps:", "max_step:")
            )
            broken.write_text("a: [1\n")
            result = validate(
                good,
                bad,
                broken,
                "trainer.log_every_n_steps=2",
                "--json",
                "--junit",
                folder / "v.xml",
                "--sarif",
                folder / "v.sarif",
            )
            document = json.loads(result.stdout)
            self.assertEqual(
                (result.returncode, document["schema"], document["ok"]),
                (2, "trellis.validate_files/1", False),
            )
            self.assertEqual([file["ok"] for file in document["files"]], [True, False, False])
            seed = next(
                problem for problem in document["files"][1]["problems"] if problem["key"] == "seed"
            )
            self.assertEqual(
                {key: seed[key] for key in ("file", "line", "expected", "got")},
                {"file": str(bad), "line": 6, "expected": "greater than 0", "got": "-1"},
            )
            self.assertEqual(document["files"][2]["problems"][0]["line"], 2)
            suite = xml.etree.ElementTree.parse(folder / "v.xml").find("testsuite")
            self.assertEqual((suite.get("tests"), suite.get("failures")), ("3", "2"))
            self.assertEqual(
                [case.get("name") for case in suite if case.find("failure") is None], [str(good)]
            )
            results = json.loads((folder / "v.sarif").read_text())["runs"][0]["results"]
            self.assertEqual(len(results), sum(len(file["problems"]) for file in document["files"]))
            place = next(r for r in results if r["ruleId"] == "seed")["locations"][0][
                "physicalLocation"
            ]
            self.assertEqual(
                (place["artifactLocation"]["uri"], place["region"]["startLine"]), (bad.as_uri(), 6)
            )

    def test_several_files_as_text(self):
        result = validate(LLAMA, SOURCE / "examples/quickstart.yaml", "seed=7")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.count(": legal\n"), 2)

    def test_no_yaml_and_no_file(self):
        self.assertEqual(validate("nowhere.yaml").returncode, 2)
        self.assertIn(
            "nowhere.yaml: cannot read: there is no such file", validate("nowhere.yaml").stderr
        )

    def test_machine_that_is_too_small(self):
        for extra, expected in (
            (
                ["--instance", "trn1.32xlarge"],
                "trainer.lnc: logical core size: trn1.32xlarge has only 1, got 2",
            ),
            (["--instance", "trn2.48xlarge", "--nodes", "4"], "use --nodes 8"),
            (
                ["trainer.lnc=null", "--instance", "trn1.32xlarge"],
                "asks for 64 ranks per node, but a trn1.32xlarge has 32",
            ),
        ):
            result = validate(LLAMA, *extra)
            self.assertEqual(result.returncode, 2)
            self.assertIn(expected, result.stderr)


if __name__ == "__main__":
    unittest.main()
