#!/usr/bin/env python3
"""`trellis explain` and `trellis simulate --fast` on small models, compared with simulations.
Environment: TRELLIS, the program."""

import json
import unittest
import xml.etree.ElementTree

from cli_case import QUICKSTART, SOURCE, CheckedCase

CONSTANTS = ["--constant", "collectives.step_time", "--constant", "core.dma.fixed_latency"]


class Explain(CheckedCase):
    def simulated_ps(self, *args):
        log = f"exp_manager.explicit_log_dir={self.dir / 'run'}"
        report = json.loads(self.trellis("simulate", QUICKSTART, log, "--json", *args).stdout)
        return report["simulated"]["step_time_ps"], report

    def test_ends_are_what_simulate_gives(self):
        svg, page = self.dir / "tornado.svg", self.dir / "page.html"
        result = self.trellis(
            "explain", QUICKSTART, *CONSTANTS, "--json", "--svg", svg, "--html", page
        )
        document = json.loads(result.stdout)
        self.assertEqual(document["schema"], "trellis.explain/1")
        step, report = self.simulated_ps()
        self.assertEqual(document["step_time_ps"], step)
        self.assertEqual(
            document["validity"]["step_time_range_ms"], report["validity"]["step_time_range_ms"]
        )
        keys = {each["key"] for each in document["constants"]}
        self.assertEqual(keys, {"collectives.step_time", "core.dma.fixed_latency"})
        swings = [each["swing_ps"] for each in document["constants"]]
        self.assertEqual(swings, sorted(swings, reverse=True))
        for each in document["constants"]:
            for end in (each["least"], each["most"]):
                direct, _ = self.simulated_ps("--set", f"{each['key']}={end['value']}")
                self.assertEqual(end["step_time_ps"], direct, each["key"])
            self.assertGreater(each["swing_ps"], 0)
            self.assertTrue(each["measurement"] and each["source"])
        validity = document["validity"]
        self.assertAlmostEqual(
            validity["factor"],
            validity["measured_factor"] * validity["wider_per_step"] ** validity["steps_beyond"],
        )
        self.assertEqual(validity["status"], "exploratory")
        self.assertIn("trellis calibrate", validity["measurement"])
        parts = sum(part["time_ps"] for part in document["parts"])
        self.assertEqual(parts, step, "the parts add up to the step")
        distances = [row["distance"] for row in document["nearest_rows"]]
        self.assertEqual(distances, sorted(distances))
        picture = xml.etree.ElementTree.parse(svg).getroot()
        bars = picture.findall(".//{http://www.w3.org/2000/svg}rect")
        ends = sum(
            end["step_time_ps"] != step
            for each in document["constants"]
            for end in (each["least"], each["most"])
        )
        self.assertEqual(len(bars), 1 + ends, "a background, and a bar for each end that differs")
        self.assertIn("trellis.explain/1", page.read_text())

    def test_text_and_mistakes(self):
        published = SOURCE / "benchmarks/published/training/B04.yaml"
        text = self.trellis(
            "explain",
            published,
            "--nodes",
            16,
            "--constant",
            "collectives.efa_efficiency",
            "--jobs",
            1,
        ).stdout
        for word in ("Nearest published steps", "B04", "What to measure", "nccom-test"):
            self.assertIn(word, text)
        command = next(line for line in text.splitlines() if "What was measured" in line)
        self.assertIn("--instance trn1.32xlarge --nodes 16 --set KEY=VALUE", command)
        wrong = self.trellis("explain", QUICKSTART, "--constant", "core.nothing", returncode=2)
        self.assertIn("core.nothing", wrong.stderr)
        self.assertIn("trellis describe", wrong.stderr)


class Fast(CheckedCase):
    def test_no_simulation_is_below(self):
        bounds = json.loads(self.trellis("simulate", QUICKSTART, "--fast", "--json").stdout)
        self.assertEqual(bounds["schema"], "trellis.bounds/1")
        log = f"exp_manager.explicit_log_dir={self.dir / 'run'}"
        report = json.loads(self.trellis("simulate", QUICKSTART, log, "--json").stdout)
        self.assertLessEqual(bounds["step_time_least_ps"], report["simulated"]["step_time_ps"])
        self.assertGreater(bounds["step_time_least_ps"], 0)
        fullest = max(rank["peak_bytes"] for rank in report["memory"]["ranks"])
        self.assertLessEqual(bounds["memory_least_bytes"], fullest)
        self.assertGreaterEqual(bounds["mfu_most"], report["mfu"])
        self.assertFalse((self.dir / "nemo_experiments").exists(), "nothing is written")

    def test_it_is_the_bound_of_a_sweep(self):
        axes = ["tp=2", "pp=2", "vpp=1", "mbs=2", "sp=true", "zero1=true", "kv=1", "recompute=none"]
        only = [word for axis in axes for word in ("--only", axis)]
        sweep = json.loads(
            self.trellis("sweep", QUICKSTART, "--chips", 4, *only, "--json", "--all").stdout
        )
        (row,) = sweep["rows"]
        words = row["command"].split()
        overrides = [word for word in words if "=" in word and not word.startswith("--")]
        bounds = json.loads(
            self.trellis("simulate", QUICKSTART, *overrides, "--fast", "--json").stdout
        )
        self.assertEqual(bounds["step_time_least_ps"], row["bound_ps"])
        self.assertEqual(bounds["memory_least_bytes"], row["bound_bytes"])

    def test_mfu_of_a_throughput_that_was_measured(self):
        """The published row of Llama 3.1 8B on 32 nodes: 47.95 sequences of 8192 tokens, 20.8 %."""
        run = ("simulate", SOURCE / "examples/llama3_8b_trn1.yaml", "model.encoder_seq_length=8192")
        run += ("data.global_batch_size=1024", "trainer.num_nodes=32", "--throughput")
        rate = json.loads(self.trellis(*run, 47.95, "--json").stdout)
        self.assertAlmostEqual(rate["step_time_s"], 21.36, delta=0.01)
        self.assertAlmostEqual(rate["tokens_per_s"], 392806, delta=10)
        published = rate["mfu"] * rate["mfu_denominator_flops_per_s"] / (32 * 3040e12)
        self.assertAlmostEqual(published, 0.208, delta=0.0005)
        # NxDT's formula, with its numbers of layers, widths and heads.
        s, h, ffn, v = 8192, 4096, 14336, 128256
        layer = 2 * s * (h * h + 2 * 8 * 128 * h) + 2 * s * s * h + 6 * 32 * s * s
        layer += 2 * s * s * h + 2 * s * h * h + 3 * 2 * s * h * ffn
        flops = 3 * (32 * layer + 2 * s * v * h + 2 * s * v * h)
        self.assertAlmostEqual(rate["nxdt_mfu"], flops * 47.95 / 32 / 3040e12, delta=2e-3)
        text = self.trellis(*run, 47.95).stdout
        self.assertIn(f"MFU {100 * rate['mfu']:.1f} % = ", text)
        self.assertIn("no run does more than", self.trellis(*run, 1000, returncode=2).stderr)

    def test_options_of_simulations_are_refused(self):
        result = self.trellis("simulate", QUICKSTART, "--fast", "--slow", "core:0=2", returncode=2)
        self.assertIn("--slow", result.stderr)


if __name__ == "__main__":
    unittest.main()
