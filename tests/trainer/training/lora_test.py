"""Adapters against PEFT's over transformers' Llama: losses of eight steps (twenty in
scripts/judge) on one rank and on TP 2 × PP 2 × DP 2, for every kind of layer, scale, and start;
which weights move; what is refused.
Environment: ALIGNMENT_PROGRAM, the program."""

import unittest

import torch
from alignment_case import EIGHT, ONE, Case, Formulas, supervised_loss
from peft_case import adapted_model_of

ALL = "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"
SEPARATE = "model.fuse_gate_up=false"
BIASES = ("model.has_bias=true",)


class Peft(Formulas):
    """Supervised fine-tuning of an adapted model, whose adapters start as those of a run."""

    def __init__(self, weights, records, **config):
        self.model, self.records = adapted_model_of(weights, **config), records
        self.starts_as_base()

    def starts_as_base(self):
        tokens = torch.arange(24).reshape(2, 12)
        with torch.no_grad():
            now = self.model(tokens).logits
            with self.model.disable_adapter():
                torch.testing.assert_close(now, self.model(tokens).logits)

    def step(self, places):
        return supervised_loss(self.model, [self.records[i] for i in places]), {}


def section(targets, more=""):
    return (
        "{sft: {}, peft: {lora_rank: 4, lora_alpha: 8, lora_dropout: 0.0, "
        f"target_modules: {targets}{more}}}}}"
    )


class Lora(Case):
    def check(self, strategy, *overrides, **config):
        weights, one = self.train(strategy, ONE, *overrides)
        self.close(one, Peft(weights, self.records, **config).train())
        self.assertLess(one[-1]["loss"], one[0]["loss"])
        _, eight = self.train(strategy, EIGHT, *overrides, run="eight")
        self.close(eight, one)
        return weights

    def test_every_projection(self):
        self.check(section(ALL), SEPARATE, target_modules=ALL[1:-1].split(", "))

    def test_rank_stabilised_and_gaussian(self):
        weights = self.check(
            section("null", ", use_rslora: true, init_lora_weights: gaussian"),
            target_modules=["q_proj", "v_proj"],
            use_rslora=True,
            init_lora_weights="gaussian",
        )
        a = torch.cat([w.flatten() for name, w in weights.items() if "lora_A" in name])
        self.assertAlmostEqual(a.std().item(), 1 / 4, 1)

    def test_embedding_and_head(self):
        self.check(
            section("[embed_tokens, lm_head, q_proj]"),
            target_modules=["embed_tokens", "lm_head", "q_proj"],
        )

    def test_targets_by_a_pattern_and_by_a_path(self):
        pattern = r".*layers\.1\.self_attn\.(q|o)_proj"
        self.check(section(f"'{pattern}'"), target_modules=pattern)
        names = self.train(section("[layers.0.self_attn.v_proj]"), ONE, steps=1)[0]
        adapted = {name.rsplit(".", 2)[0] for name in names if "lora_" in name}
        self.assertEqual(adapted, {"model.layers.0.self_attn.v_proj"})

    def test_modules_to_save_are_trained_as_a_whole(self):
        self.check(
            section("[q_proj]", ", modules_to_save: [lm_head, input_layernorm]"),
            target_modules=["q_proj"],
            modules_to_save=["lm_head", "input_layernorm"],
        )

    def test_replicating_projection_in_every_layout(self):
        """The copies of key/value heads have copies of their adapters."""
        strategy = section("[qkv_proj, o_proj]")
        more = ["model.qkv_linear=true"]
        _, one = self.train(strategy, ONE, *more, steps=8)
        four = dict(tp=4, pp=1, devices=4, sp="true")
        kv = "distributed_strategy.kv_replicator=2"
        for fused in ("true", "false"):
            _, losses = self.train(
                strategy, four, *more, kv, f"model.fuse_qkv={fused}", steps=8, run=f"r{fused}"
            )
            self.close(losses, one)

    def test_megatron_models_and_their_biases(self):
        moved = {}
        for bias in ("none", "all", "lora_only"):
            strategy = section("[qkv_proj, down_proj]", f", lora_bias: {bias}")
            more = dict(source="megatron", steps=6)
            _, one = self.train(strategy, ONE, *BIASES, run=f"o{bias}", **more)
            _, eight = self.train(strategy, EIGHT, *BIASES, run=f"e{bias}", **more)
            self.close(eight, one)
            moved[bias] = one[-1]["loss"]
        self.assertEqual(len(set(moved.values())), 3, moved)

    def test_what_is_refused(self):
        def refused(targets, *texts, more=""):
            done = self.start(section(targets, more), ONE, steps=1)
            self.assertEqual(done.returncode, 2, done.stderr)
            for text in ("run.yaml:", *texts):
                self.assertIn(text, done.stderr)

        refused("[q_prj]", "`q_prj` names no module of this model", "q_proj")
        refused("'.*nothing'", "no whole path of a module matches `.*nothing`")
        refused("'(q_proj'", "expected a list of names, or a regular expression")
        refused("[input_layernorm]", "input_layernorm takes no adapter")
        refused("[]", "names no layer")
        refused("[q_proj]", "use_dora", "DoRA", more=", use_dora: true")
        refused("[q_proj]", "`nothing` names no module", more=", modules_to_save: [nothing]")
        refused("[q_proj]", "is in target_modules too", more=", modules_to_save: [q_proj]")
        refused("[q_proj]", "init_lora_weights", "gaussian", more=", init_lora_weights: pissa")
        refused("[q_proj]", "lora_bias", "lora_only", more=", lora_bias: some")


if __name__ == "__main__":
    unittest.main()
