#!/usr/bin/env python3
"""A Hugging Face folder and a file of records in; an adapter that PEFT loads and a merged model
that transformers loads out: the same logits, whatever layout trained them."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import peft
import safetensors
import torch
import transformers
from hub_folders import save_llama

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
CONFIG = """
name: adapters
model_source: hf
seed: 5
trainer: {{devices: {devices}, max_steps: 3, gradient_clip_val: 1.0}}
exp_manager:
  explicit_log_dir: {log}
  create_tensorboard_logger: false
  create_checkpoint_callback: true
  checkpoint_callback_params: {{monitor: step, mode: max, save_top_k: 1}}
distributed_strategy:
  tensor_model_parallel_size: {tp}
  pipeline_model_parallel_size: {pp}
  sequence_parallel: {sp}
  kv_replicator: {kv}
data:
  micro_batch_size: 1
  global_batch_size: 8
  train_dir: {data}
  tokenizer: {{library: byte-level}}
model:
  encoder_seq_length: 32
  max_position_embeddings: 32
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 48
  num_attention_heads: 4
  num_kv_heads: 2
  vocab_size: 264
  make_vocab_size_divisible_by: 1
  layernorm_epsilon: 1.0e-5
  {model}
  optim: {{name: adamw, lr: 2.0e-2, weight_decay: 0.0, betas: [0.9, 0.999]}}
model_alignment_strategy:
  sft: {{}}
  peft: {{lora_rank: 4, lora_alpha: 8, lora_dropout: 0.1, {peft}}}
precision: {{type: fp32}}
"""
EIGHT = dict(tp=2, pp=2, devices=8, sp="true", kv=1)
FOUR = dict(tp=4, pp=1, devices=4, sp="true", kv=2)


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        rows = [{"input": f"{i} + {i} = ", "output": str(2 * i)} for i in range(30)]
        (self.dir / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def trellis(self, *args, returncode=0):
        result = subprocess.run(
            [str(TRELLIS), *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(result.returncode, returncode, result.stdout + result.stderr[-3000:])
        return result

    def base(self):
        return save_llama(self.dir / "hub")

    def train(self, layout, adapters, model="fuse_gate_up: true"):
        config = self.dir / "run.yaml"
        config.write_text(
            CONFIG.format(
                log=self.dir / "run",
                data=self.dir / "sums.jsonl",
                peft=adapters,
                model=model,
                **layout,
            )
        )
        self.trellis("train", config, "--device", "cpu", "--init-from", self.dir / "hub")
        (checkpoint,) = (self.dir / "run/checkpoints").glob("*-last.ckpt")
        return checkpoint


def tensors(folder, name):
    from safetensors.torch import load_file

    return load_file(folder / name)


class Adapters(Case):
    def check(self, layout, adapters, **more):
        hub = self.base()
        checkpoint = self.train(layout, adapters, **more)
        out, merged = self.dir / "adapter", self.dir / "merged"
        self.trellis("checkpoint", "export-adapter", checkpoint, "--out", out, "--base", hub)
        self.trellis(
            *("checkpoint", "export-hf", checkpoint, "--like", hub, "--out", merged),
            "--merge-adapters",
        )
        base = transformers.AutoModelForCausalLM.from_pretrained(hub)
        plain = {name: weight.clone() for name, weight in base.state_dict().items()}
        adapted = peft.PeftModel.from_pretrained(base, out).eval()
        loaded = {name for name, _ in adapted.named_parameters() if "lora_" in name}
        self.assertEqual(
            len(loaded), sum("lora_" in name for name in tensors(out, "adapter_model.safetensors"))
        )
        served = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()
        tokens = torch.randint(0, 257, (3, 32), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            with adapted.disable_adapter():
                before = adapted(tokens).logits
            got, expected = served(tokens).logits, adapted(tokens).logits
        self.assertGreater((expected - before).abs().max().item(), 1e-2)
        self.assertLessEqual((got - expected).abs().max().item(), 1e-5)
        dense = adapted.merge_and_unload().state_dict()
        for name, weight in served.state_dict().items():
            difference = (weight - dense[name]).abs().max().item()
            self.assertLessEqual(difference, 1e-6, name)
        return plain, dense, json.loads((out / "adapter_config.json").read_text())

    def test_fused_projections_through_tp_2_pp_2_dp_2(self):
        names = "[qkv_proj, o_proj, gate_up_proj, down_proj]"
        plain, dense, config = self.check(EIGHT, f"target_modules: {names}")
        self.assertEqual(
            set(config["target_modules"]),
            {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        )
        self.assertEqual((config["r"], config["lora_alpha"]), (4, 8))
        for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
            self.assertTrue(torch.equal(plain[name], dense[name]), name)

    def test_replicated_heads_and_rank_stabilised(self):
        self.check(
            FOUR,
            "target_modules: [qkv_proj, o_proj], use_rslora: true",
            model="qkv_linear: true",
        )

    def test_embedding_head_and_modules_to_save(self):
        _, _, config = self.check(
            EIGHT, "target_modules: [embed_tokens, layers.1.mlp.down_proj], modules_to_save: [norm]"
        )
        self.assertEqual(
            config["target_modules"], ["model.embed_tokens", "model.layers.1.mlp.down_proj"]
        )

    def test_mistakes(self):
        hub = self.base()
        checkpoint = self.train(EIGHT, "target_modules: [q_proj]")

        def fails(*args):
            return self.trellis("checkpoint", *args, returncode=2).stderr

        out = self.dir / "out"
        error = fails("export-hf", checkpoint, "--like", hub, "--out", out)
        self.assertIn("holds LoRA adapters: add --merge-adapters", error)
        error = fails("export-hf", hub, "--like", hub, "--out", out, "--merge-adapters")
        self.assertIn("holds no adapters", error)
        more = ("--set", "model_alignment_strategy.peft.lora_rank=8")
        error = fails("export-adapter", checkpoint, "--out", out, *more)
        self.assertIn("is of rank 4, and peft.lora_rank says 8", error)
        self.assertFalse(out.exists())
        self.trellis("checkpoint", "export-adapter", checkpoint, "--out", out)
        error = fails("export-adapter", checkpoint, "--out", out)
        self.assertIn("expected an empty folder", error)


class SaveModes(Case):
    """What lora_save_dir gets with each checkpoint, next to it."""

    TARGETS = "target_modules: [qkv_proj, o_proj, gate_up_proj, down_proj, embed_tokens, lm_head]"

    def save(self, layout, adapters, **more):
        hub, folder = self.base(), self.dir / "saved"
        checkpoint = self.train(layout, f"{adapters}, lora_save_dir: {folder}", **more)
        return hub, folder, checkpoint

    def keys(self, checkpoint):
        """Of all ranks' files of weights, and what is not a tensor in the first of them."""
        files = sorted(checkpoint.glob("model/*.pt"))
        parts = [torch.load(file, weights_only=True) for file in files]
        other = {k: v for k, v in parts[0].items() if not isinstance(v, torch.Tensor)}
        return {key for part in parts for key in part} - set(other), other

    def merged(self, layout, adapters, **more):
        """Each rank merged its part: what the whole adapters give, merged into whole weights."""
        hub, folder, checkpoint = self.save(
            layout, f"{adapters}, merge_lora: true, save_lora_config_adapter: true", **more
        )
        tag = folder / checkpoint.name
        keys, other = self.keys(tag)
        self.assertFalse([key for key in keys if "lora" in key])
        config = other["lora_config"]
        self.assertEqual((config["r"], config["lora_alpha"], config["merge_lora"]), (4, 8.0, True))
        self.assertEqual(self.keys(checkpoint)[1]["lora_config"], config)
        served, dense = self.dir / "served", self.dir / "dense"
        export = ("checkpoint", "export-hf")
        self.trellis(*export, tag, "--like", hub, "--out", served)
        self.trellis(*export, checkpoint, "--like", hub, "--out", dense, "--merge-adapters")
        model = transformers.AutoModelForCausalLM.from_pretrained(served)
        expected = transformers.AutoModelForCausalLM.from_pretrained(dense).state_dict()
        base = transformers.AutoModelForCausalLM.from_pretrained(hub).state_dict()
        for name, weight in model.state_dict().items():
            self.assertLessEqual((weight - expected[name]).abs().max().item(), 1e-6, name)
            if "_proj" in name:
                self.assertGreater((weight - base[name]).abs().max().item(), 1e-3, name)
            if "embed" in name or "lm_head" in name:
                changed = not torch.equal(weight, base[name])
                self.assertEqual(changed, "embed_tokens" in adapters, name)

    def test_merged_by_each_rank_of_tp_2_pp_2_dp_2(self):
        self.merged(EIGHT, self.TARGETS)

    def test_merged_with_copied_heads_and_rank_stabilised(self):
        targets = "target_modules: [qkv_proj, o_proj, gate_up_proj, down_proj], use_rslora: true"
        self.merged(FOUR, targets, model="qkv_linear: true\n  fuse_gate_up: true")

    def test_one_adapter_for_one_device(self):
        hub, folder, checkpoint = self.save(
            EIGHT, f"{self.TARGETS}, merge_sharded_lora: true, save_lora_config_adapter: true"
        )
        files = {"adapter_config.json", "adapter_model.safetensors"}
        self.assertEqual({file.name for file in folder.iterdir()}, files)
        out = self.dir / "adapter"
        self.trellis("checkpoint", "export-adapter", checkpoint, "--out", out, "--base", hub)
        expected, got = (tensors(each, "adapter_model.safetensors") for each in (out, folder))
        self.assertEqual(set(got), set(expected))
        for name, weight in got.items():
            self.assertTrue(torch.equal(weight, expected[name]), name)
        config = json.loads((folder / "adapter_config.json").read_text())
        self.assertEqual(config, json.loads((out / "adapter_config.json").read_text()))
        with safetensors.safe_open(folder / "adapter_model.safetensors", "pt") as file:
            self.assertEqual(json.loads(file.metadata()["lora_config"]), config)
        base = transformers.AutoModelForCausalLM.from_pretrained(hub)
        peft.PeftModel.from_pretrained(base, folder)

    def test_base_and_adapters(self):
        _, folder, checkpoint = self.save(EIGHT, f"{self.TARGETS}, save_lora_base: true")
        keys, other = self.keys(folder / checkpoint.name)
        self.assertEqual((keys, other), self.keys(checkpoint))
        self.assertEqual(other, {})
        self.assertTrue(json.loads((folder / "adapter_config.json").read_text())["save_lora_base"])

    def test_what_excludes_what(self):
        for keys, text in (
            ("merge_lora: true, merge_sharded_lora: true", "merge_lora: expected false, got true"),
            ("save_lora_base: true, merge_sharded_lora: true", "save_lora_base: expected false"),
            ("merge_lora: true, load_lora_from_ckpt: true", "nothing is saved in lora_save_dir"),
        ):
            config = self.dir / "run.yaml"
            names = dict(log=self.dir / "run", data=self.dir / "sums.jsonl", model="")
            config.write_text(CONFIG.format(**names, peft=keys, **EIGHT))
            done = self.trellis("train", config, "--device", "cpu", returncode=2)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
