#!/usr/bin/env python3
"""`trellis schedule`, as its users meet it. Environment: TRELLIS, the program."""

import json
import re
import sys
import unittest
import xml.etree.ElementTree

from report_case import QUICKSTART, Case


class Schedules(Case):
    def test_picture_and_formula_of_equal_stages(self):
        text = self.ok("schedule", "--pp", 4, "--vpp", 2, "--micro-batches", 8)
        self.assertEqual(len(re.findall(r"^  rank \d", text, re.M)), 4)
        self.assertIn("3 / 19 = 15.79 %", text)
        document = self.document(
            "trellis.schedule/1", "schedule", "--pp", 4, "--vpp", 2, "--micro-batches", 8
        )
        self.assertAlmostEqual(document["bubble"], 3 / 19, places=9)
        self.assertAlmostEqual(document["bubble"], document["bubble_of_equal_stages"], places=9)
        self.assertEqual(sum(len(rank["slots"]) for rank in document["ranks"]), 2 * 8 * 2 * 4)

    def test_of_many_micro_batches_the_beginning_and_the_end_are_drawn(self):
        lines = re.findall(
            r"^  rank \d +(.*)$", self.ok("schedule", "--pp", 4, "--micro-batches", 512), re.M
        )
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertLessEqual(len(line), 120)
            beginning, end = line.split(" … ")
            self.assertRegex(beginning, r"0>")
            self.assertRegex(end, r"511<")
        self.assertTrue(lines[0].endswith("<") and lines[3].endswith("."))

    def test_svg_holds_every_pass(self):
        self.ok("schedule", "--pp", 3, "--micro-batches", 5, "--svg", "picture.svg")
        tree = xml.etree.ElementTree.parse(self.dir / "picture.svg")
        self.assertEqual(len(tree.findall(".//{http://www.w3.org/2000/svg}g")), 3 * 5 * 2)

    def test_stages_take_the_time_of_the_run(self):
        run = self.simulate("run")
        document = self.document("trellis.schedule/1", "schedule", "--report", run)
        self.assertEqual(document["unit"], "ps")
        step = document["measured_step_ps"]
        self.assertLess(
            abs(document["end"] - step) / step, 0.25, "the drawn passes make most of the step"
        )

    def test_cuts_are_legal_and_what_simulate_makes_of_them(self):
        gpt = self.dir / "gpt.yaml"
        gpt.write_text(
            QUICKSTART.read_text()
            .replace("normalization: rmsnorm", "normalization: layernorm")
            .replace("activation: swiglu", "activation: gelu")
            .replace("make_vocab_size_divisible_by: 8 ", "make_vocab_size_divisible_by: 1024 ")
        )
        for config in (QUICKSTART, gpt):
            overrides = ["model.num_layers=8", "model.make_vocab_size_divisible_by=4096"]
            document = self.document(
                "trellis.schedule/1", "schedule", config, *overrides, "--balance"
            )
            cuts = document["balanced"]["pipeline_cuts"]
            self.assertNotEqual(cuts, document["pipeline_cuts"])
            self.assertLess(document["balanced"]["end"], document["end"])
            run = self.simulate(
                f"cut{config.stem}", *overrides, f"model.pipeline_cuts={cuts}", config=config
            )
            self.assertIn(cuts.strip("[]").split(".")[0], (run / "hparams.yaml").read_text())

    def test_balanced_cuts_gain_what_was_predicted(self):
        heavy_head = [
            "model.num_layers=16",
            "model.hidden_size=512",
            "model.ffn_hidden_size=1408",
            "model.num_attention_heads=8",
            "model.encoder_seq_length=512",
            "model.make_vocab_size_divisible_by=16384",
            "distributed_strategy.pipeline_model_parallel_size=4",
            "data.global_batch_size=16",
            "data.micro_batch_size=1",
        ]
        even = self.simulate("even", *heavy_head)
        plan = self.document("trellis.schedule/1", "schedule", "--report", even, "--balance")
        cut = self.simulate(
            "cut", *heavy_head, f"model.pipeline_cuts={plan['balanced']['pipeline_cuts']}"
        )
        before, after = (
            json.loads((run / "report.json").read_text())["simulated"]["step_time_ps"]
            for run in (even, cut)
        )
        predicted = plan["balanced"]["end"] - plan["end"]
        self.assertLess(predicted, -0.05 * before)
        self.assertLess(abs((after - before) - predicted), 0.01 * before)

    def test_bad_input(self):
        self.fails(2, "schedule", texts=["--pp N --micro-batches M"])
        self.fails(2, "schedule", "--pp", 4, "--micro-batches", 8, "--balance", texts=["--balance"])
        self.fails(
            2, "schedule", "--pp", 4, "--vpp", 2, "--micro-batches", 6, texts=["multiple of 4"]
        )
        self.fails(2, "schedule", QUICKSTART, "--pp", 8, texts=["quickstart.yaml"])
        self.fails(2, "schedule", "--report", self.dir / "none", texts=["no such report"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=1)
