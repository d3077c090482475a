#!/usr/bin/env python3
"""Whole journeys of users from the shell: each command as its user types it, in one folder."""

import json
import unittest

import peft
import torch
import transformers
import yaml
from cli_case import CheckedCase
from hub_folders import save_llama

RUN = {
    "name": "sums",
    "model_source": "hf",
    "seed": 5,
    "trainer": {"devices": 4, "max_steps": 6, "gradient_clip_val": 1.0},
    "exp_manager": {
        "explicit_log_dir": "run",
        "create_tensorboard_logger": True,
        "create_checkpoint_callback": True,
        "checkpoint_callback_params": {"monitor": "step", "mode": "max", "save_top_k": 1},
    },
    "distributed_strategy": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "data": {
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "train_dir": "my.jsonl",
        "tokenizer": {"library": "byte-level"},
    },
    "model": {
        "vocab_size": 264,
        "hidden_size": 32,
        "max_position_embeddings": 32,
        "encoder_seq_length": 32,
        "num_layers": 2,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "make_vocab_size_divisible_by": 1,
        "layernorm_epsilon": 1e-5,
        "optim": {"name": "adamw", "lr": 0.02},
    },
    "model_alignment_strategy": {
        "sft": {},
        "peft": {"lora_rank": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj"]},
    },
    "precision": {"type": "fp32"},
}
PRICES = """
date: 2026-11-01
currency: USD
instances:
  trn2.3xlarge:
    on_demand: {per_hour: 4.40, source: "what this user pays"}
"""


class Researcher(CheckedCase):
    """Fine-tunes a model of the hub on a laptop, closes it, goes on, and takes a model along."""

    def setUp(self):
        super().setUp()
        save_llama(self.dir / "hub")
        rows = [{"input": f"{i} + {i} = ", "output": str(2 * i)} for i in range(30)]
        (self.dir / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.dir / "sft_lora.yaml").write_text(yaml.safe_dump(RUN))
        (self.dir / "my_prices.yaml").write_text(PRICES)

    def losses(self, folder):
        lines = (self.dir / folder / "metrics.jsonl").read_text().splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, lines)}

    def run_sft(self, *args):
        return self.trellis("train", "sft_lora.yaml", "--device", "cpu", *args)

    def checkpoint(self, folder):
        (last,) = (self.dir / folder / "checkpoints").glob("*-last.ckpt")
        return last

    def test_from_the_hub_to_a_model_that_transformers_serves(self):
        self.trellis("quickstart", "trainer.max_steps=1")
        self.check_imported("hf0")
        self.check_imported("half", "precision={type: bf16SR}")
        start = ("--init-from", "hf0")
        self.run_sft(*start, "exp_manager.explicit_log_dir=whole")
        self.run_sft(*start, "--fault", "preempt:rank=1@step=3")
        self.run_sft("--resume")  # after closing the laptop
        whole, rest = self.losses("whole"), self.losses("run")
        self.assertGreater(min(rest), 3)
        self.assertEqual(rest, {step: whole[step] for step in rest})
        self.assertEqual(max(rest), 6)
        self.assertTrue(list((self.dir / "run").rglob("events.out.tfevents*")))
        exported = self.trellis(
            *("checkpoint", "export-hf", self.checkpoint("run"), "--merge-adapters"),
            *("--like", "hub", "--out", "my-model", "--verify"),
        )
        self.assertIn("every byte is that of the checkpoint (A)", exported.stdout)
        self.check_served()
        self.check_plans()

    def check_imported(self, out, *overrides):
        imported = self.trellis(
            *("checkpoint", "import-hf", "hub", *overrides, "--config", "sft_lora.yaml"),
            *("--out", out, "--verify"),
        )
        self.assertRegex(
            imported.stdout, r"Read back: 21 tensors, .* every byte is that of the source"
        )

    def check_served(self):
        """The merged model is the base with the adapters."""
        self.trellis("checkpoint", "export-adapter", self.checkpoint("run"), "--out", "adapter")
        load = transformers.AutoModelForCausalLM.from_pretrained
        adapted = peft.PeftModel.from_pretrained(load(self.dir / "hub"), self.dir / "adapter")
        ids = torch.arange(64).view(2, 32)
        with torch.no_grad():
            served = load(self.dir / "my-model")(ids).logits
            torch.testing.assert_close(served, adapted(ids).logits, rtol=1e-5, atol=1e-5)
            base = load(self.dir / "hub")(ids).logits
        self.assertGreater((served - base).abs().max(), 1e-3, "the training changes something")

    def check_plans(self):
        machine = ("--instance", "trn2.3xlarge")
        memory = self.trellis("memory", "sft_lora.yaml", *machine)
        self.assertIn("FITS", memory.stdout)
        cost = self.trellis(
            *("cost", "sft_lora.yaml", "--tokens", "200M", "--prices", "my_prices.yaml"), *machine
        )
        self.assertIn("USD", cost.stdout)


if __name__ == "__main__":
    unittest.main()
