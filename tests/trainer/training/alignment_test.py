"""Supervised fine-tuning, DPO and ORPO against TRL's trainers over transformers' Llama, on the same
records: losses, rewards and margins of eight steps (twenty in scripts/judge), on one rank and on
TP 2 × PP 2 × DP 2; ORPO as NxDT computes it; the cache of the reference model. Environment:
ALIGNMENT_PROGRAM, the program."""

import json
import math
import unittest

import torch
from alignment_case import (
    BATCH,
    EIGHT,
    ONE,
    Case,
    Formulas,
    S,
    ids,
    log_probs,
    means,
    pair_tokens,
)
from torch.nn import functional
from trl_case import Dpo, Orpo, Sft


class OrpoOfNxdt(Formulas):
    """Its NLL is the mean over the answers' tokens alone."""

    def step(self, places):
        prompt, answers = pair_tokens([self.records[i] for i in places])
        each, mask = log_probs(self.model, prompt, answers)
        p = (each * mask).sum(-1) / mask.sum(-1)
        chosen, rejected = p[:BATCH], p[BATCH:]
        odds = (chosen - rejected) - (
            torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
        )
        ratio = functional.logsigmoid(odds)
        nll = -chosen.mean()
        metrics = means(self.beta * chosen, self.beta * rejected, p, self.beta)
        metrics |= {
            "nll_loss": nll.item(),
            "log_odds_ratio": ratio.mean().item(),
            "log_odds_chosen": odds.mean().item(),
        }
        return nll - self.beta * ratio.mean(), metrics


class Alignment(Case):
    def check(self, strategy, kind, *overrides, beta=0.1, **more):
        weights, one = self.train(strategy, ONE, *overrides)
        expected = kind(weights, self.records, beta, **more).train()
        self.close(one, expected)
        _, eight = self.train(strategy, EIGHT, *overrides, run="eight")
        self.close(eight, expected)
        return one

    def check_adapted(self, strategy, kind):
        """Adapters of two layers in every projection of TRL's model, which PEFT adapts."""
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        peft = f"lora_rank: 4, lora_alpha: 8, lora_dropout: 0.0, target_modules: {names}"
        return self.check(
            f"{{{strategy}, peft: {{{peft}}}}}", kind, "model.fuse_gate_up=false", targets=names
        )

    def test_sft(self):
        self.check("{sft: {packing: false}}", Sft)

    def test_dpo(self):
        steps = self.check("{dpo: {kl_beta: 0.1, max_prompt_length: 16}}", Dpo)
        self.assertAlmostEqual(steps[0]["loss"], math.log(2), 6)
        self.assertNotAlmostEqual(steps[-1]["loss"], math.log(2), 3)

    def test_orpo_of_trl(self):
        self.check("{orpo: {beta: 0.1, max_prompt_length: 16, implementation: trl}}", Orpo)

    def test_orpo_of_nxdt(self):
        self.check("{orpo: {beta: 0.1, max_prompt_length: 16}}", OrpoOfNxdt)

    def test_sft_of_adapters(self):
        self.check_adapted("sft: {}", Sft)

    def test_dpo_of_adapters(self):
        steps = self.check_adapted("dpo: {kl_beta: 0.1, max_prompt_length: 16}", Dpo)
        self.assertAlmostEqual(steps[0]["loss"], math.log(2), 6)
        self.assertLess(steps[-1]["loss"], math.log(2) - 1e-3)

    def test_orpo_of_adapters(self):
        self.check_adapted("orpo: {beta: 0.1, max_prompt_length: 16, implementation: trl}", Orpo)

    def test_packing_gives_the_loss_of_each_record_alone(self):
        """All records in one global batch: packed and padded, the same labels count once."""
        padded_loss = self.train("{sft: {}}", ONE, "data.global_batch_size=44", steps=1)[1]
        for flash in ("true", "false"):
            packed = self.start(
                "{sft: {packing: true}}",
                ONE,
                f"model.fusions.flash_attention={flash}",
                "data.global_batch_size=1",
                steps=1,
            )
            self.assertEqual(packed.returncode, 0, packed.stderr)
            count = self.packs()
            _, steps = self.train(
                "{sft: {packing: true}}",
                ONE,
                f"model.fusions.flash_attention={flash}",
                f"data.global_batch_size={count}",
                steps=1,
            )
            self.assertLess(count, 44)
            self.assertAlmostEqual(steps[0]["loss"], padded_loss[0]["loss"], 5)

    def packs(self):
        """How many sequences the records make."""
        count, used = 0, S
        for record in self.records:
            length = len(ids(record["input"])) + len(ids(record["output"])) + 1
            if used + length > S:
                count, used = count + 1, 0
            used += length
        return count

    def test_megatron_models_in_every_layout(self):
        for strategy in (
            "{sft: {packing: true}}",
            "{dpo: {kl_beta: 0.1, max_prompt_length: 16}}",
            "{orpo: {beta: 0.1, max_prompt_length: 16}}",
        ):
            _, one = self.train(strategy, ONE, source="megatron", steps=6, run="m1")
            _, eight = self.train(strategy, EIGHT, source="megatron", steps=6, run="m8")
            self.close(eight, one)

    def test_first_dpo_loss_is_ln_2_whatever_the_layout_and_order(self):
        strategy = "{dpo: {kl_beta: 0.3, max_prompt_length: 16}}"
        two = dict(tp=1, pp=1, devices=2, sp="false")
        for number, (layout, shuffle, mbs) in enumerate(
            [(ONE, "true", 2), (two, "false", 4), (two, "true", 1), (EIGHT, "false", 2)]
        ):
            _, steps = self.train(
                strategy, layout, f"data.shuffle={shuffle}", steps=1, mbs=mbs, run=f"r{number}"
            )
            self.assertAlmostEqual(steps[0]["loss"], math.log(2), 6)
            self.assertAlmostEqual(steps[0]["rewards/margins"], 0, 5)

    def test_with_lora_the_reference_is_the_base(self):
        strategy = (
            "{dpo: {kl_beta: 0.1, max_prompt_length: 16}, peft: {lora_rank: 4, lora_dropout: 0.0,"
            " target_modules: [qkv_proj, o_proj, gate_up_proj, down_proj]}}"
        )
        _, one = self.train(strategy, ONE)
        self.assertAlmostEqual(one[0]["loss"], math.log(2), 6)
        self.assertLess(one[-1]["loss"], math.log(2) - 1e-3)
        kept = json.loads((self.dir / "run" / "reference_log_probs.json").read_text())
        # The policy starts as the reference, with adapters that do nothing: both have the sums.
        _, base = self.train("{dpo: {kl_beta: 0.1, max_prompt_length: 16}}", ONE, steps=1, run="b")
        other = json.loads((self.dir / "b" / "reference_log_probs.json").read_text())
        for (_, a, b), (_, c, d) in zip(kept["train"], other["train"], strict=True):
            self.assertAlmostEqual(a, c, 3)
            self.assertAlmostEqual(b, d, 3)

    def test_the_reference_is_kept_and_checked(self):
        strategy = "{dpo: {kl_beta: 0.1, max_prompt_length: 16}}"
        _, first = self.train(strategy, ONE, steps=3)
        file = self.dir / "run" / "reference_log_probs.json"
        before = file.read_bytes()
        _, second = self.train(strategy, ONE, steps=3)
        self.assertEqual(first, second)
        self.assertEqual(file.read_bytes(), before)
        # Of another seed the weights are others.
        done = self.start(strategy, ONE, "seed=78", steps=1)
        self.assertEqual(done.returncode, 2, done.stderr)
        for text in ("reference_log_probs.json", "other weights", "data.jsonl:1"):
            self.assertIn(text, done.stderr)
        changed = [dict(record) for record in self.records]
        changed[6]["chosen"] += "!"
        self.write(changed)
        done = self.start(strategy, ONE, steps=1)
        self.assertEqual(done.returncode, 2, done.stderr)
        for text in ("reference_log_probs.json", "other data", "data.jsonl:7"):
            self.assertIn(text, done.stderr)
        self.write(self.records[:20])
        self.assertIn("expected those of 20 pairs", self.start(strategy, ONE, steps=1).stderr)
        file.write_text('{"schema": "trellis.reference_log_probs/1", "train": [["x", 1]]}')
        self.assertIn("train pair 1", self.start(strategy, ONE, steps=1).stderr)


if __name__ == "__main__":
    unittest.main()
