#!/usr/bin/env python3
"""Weights of another model than the configuration's are refused through every door, by the name of
each property, and pass with the options that the error prints."""

import argparse
import json
import re
import shutil
import unittest

import cli_case
import torch
import torch.distributed.checkpoint as dcp
import transformers
from hub_folders import save_llama

CONFIG = """
name: tiny
model_source: hf
seed: 1
trainer: {devices: 1, num_nodes: 1, max_steps: 2, gradient_clip_val: 1.0}
exp_manager: {exp_dir: exp, name: tiny, create_tensorboard_logger: false}
distributed_strategy: {tensor_model_parallel_size: 1, zero1: true}
data: {micro_batch_size: 1, global_batch_size: 2, train_dir: words.txt,
  tokenizer: {library: byte-level}}
model:
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 48
  num_attention_heads: 4
  num_kv_heads: 2
  encoder_seq_length: 32
  max_position_embeddings: 32
  vocab_size: 264
  make_vocab_size_divisible_by: 1
  rope_theta: 10000.0
  layernorm_epsilon: 1.0e-5
  optim: {name: adamw, lr: 1.0e-3, weight_decay: 0.0, betas: [0.9, 0.95]}
precision: {type: fp32}
"""
SAVES = (
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={every_n_train_steps: 2, monitor: step, mode: max}",
)
# Megatron-LM's command line of the same model, as its checkpoints keep it.
ARGUMENTS = dict(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    group_query_attention=True,
    num_query_groups=2,
    kv_channels=8,
    ffn_hidden_size=48,
    swiglu=True,
    add_bias_linear=False,
    normalization="RMSNorm",
    norm_epsilon=1e-5,
    qk_layernorm=False,
    position_embedding_type="rope",
    rotary_base=10000,
    rotary_percent=1.0,
    rotary_interleaved=False,
    apply_layernorm_1p=False,
    use_rope_scaling=False,
    softmax_type="vanilla",
    window_size=None,
    untie_embeddings_and_output_weights=True,
    padded_vocab_size=264,
)


def megatron_weights(layers=2):
    generator = torch.Generator().manual_seed(0)

    def some(*shape):
        return torch.randn(*shape, generator=generator) * 0.1

    attention, mlp = "decoder.layers.self_attention.", "decoder.layers.mlp."
    return {
        "embedding.word_embeddings.weight": some(264, 32),
        attention + "linear_qkv.layer_norm_weight": 1 + some(layers, 32),
        attention + "linear_qkv.weight": some(layers, 64, 32),
        attention + "linear_proj.weight": some(layers, 32, 32),
        mlp + "linear_fc1.layer_norm_weight": 1 + some(layers, 32),
        mlp + "linear_fc1.weight": some(layers, 96, 32),
        mlp + "linear_fc2.weight": some(layers, 32, 48),
        "decoder.final_layernorm.weight": 1 + some(32),
        "output_layer.weight": some(264, 32),
    }


class Case(cli_case.CheckedCase):
    def setUp(self):
        super().setUp()
        (self.dir / "tiny.yaml").write_text(CONFIG)
        (self.dir / "words.txt").write_text("a tree and a stone by the river, in one line\n" * 60)

    def go(self, *args, log="run", returncode=0):
        return self.trellis(
            *("train", "tiny.yaml", "--device", "cpu", f"exp_manager.explicit_log_dir={log}"),
            *args,
            returncode=returncode,
        ).stderr

    def refused(self, *args, names=(), **options):
        """What the error says lets the same command pass."""
        error = self.go(*args, returncode=2, **options)
        for name in names:
            self.assertIn(name, error)
        return re.findall(r"--accept-difference [\w.]+", error)

    def saved(self, *args):
        self.go("trainer.max_steps=2", *SAVES, *args, log="first")
        return next((self.dir / "first/checkpoints").glob("*-last.ckpt"))

    def edit(self, folder, **changes):
        file = folder / "config.json"
        config = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))

    def megatron(self, more=None, layers=2, **arguments):
        folder = self.dir / "megatron"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        dcp.save({**megatron_weights(layers), **(more or {})}, checkpoint_id=folder, no_dist=True)
        args = argparse.Namespace(**{**ARGUMENTS, **arguments})
        torch.save({"args": args, "iteration": 7}, folder / "common.pt")
        backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
        (folder / "metadata.json").write_text(json.dumps(backend))
        return folder


class HuggingFace(Case):
    def test_each_property_is_named_and_let_pass_by_what_the_error_prints(self):
        folder = save_llama(self.dir / "hub")
        imports = ("checkpoint", "import-hf", folder, "--config", "tiny.yaml", "--out")
        self.trellis(*imports, "equal")
        self.edit(
            folder,
            model_type="mistral",
            sliding_window=4,
            rms_norm_eps=0.1,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        )
        keys = ("rms_norm_eps", "sliding_window", "rope_theta", "rope_scaling", "0.1", "500000")
        accept = self.refused("--init-from", folder, names=(*keys, "tiny.yaml:20:model.rope_theta"))
        accept = " ".join(accept).split()
        self.assertEqual(len(accept), 2 * 5, accept)
        error = self.trellis(*imports, "other", returncode=2).stderr
        for key in keys:
            self.assertIn(key, error)
        self.trellis(*imports, "other", *accept)
        self.assertIn("rope_theta", self.refused("--init-from", folder, *accept[:-6])[0])
        said = self.go("--init-from", folder, *accept)
        self.assertEqual(said.count("accepted"), 5, said)
        self.assertIn("accept_differences: [", (self.dir / "run/hparams.yaml").read_text())
        # `evaluate` takes the same folder by the same rule.
        (self.dir / "rows.jsonl").write_text('{"input": "a tree", "output": "and"}\n')
        evaluates = ("evaluate", "tiny.yaml", "--data", "rows.jsonl", "--checkpoint", folder)
        error = self.trellis(*evaluates, returncode=2).stderr
        self.assertIn("rms_norm_eps", error)
        self.trellis(*evaluates, *accept)

    def test_a_key_that_is_not_there_is_transformers_default(self):
        folder = save_llama(self.dir / "hub")
        classes = {
            "llama": {},
            "mistral": {"sliding_window": "absent"},
            "qwen2": {},
            "qwen3": {},
            "olmo2": {},
        }
        for kind, more in classes.items():
            with self.subTest(kind):
                self.edit(folder, model_type=kind, rms_norm_eps="absent", **more)
                read = transformers.AutoConfig.from_pretrained(folder)
                names = [f"layernorm_epsilon, got {read.rms_norm_eps:g}"]
                if kind == "mistral":
                    names.append(f"got {read.sliding_window}")
                if kind == "qwen2":
                    names = ["has no tensor model.layers.0.self_attn.q_proj.bias"]
                if kind == "olmo2":
                    names = ["has no tensor model.layers.0.post_feedforward_layernorm.weight"]
                if kind == "qwen3":
                    self.edit(folder, head_dim=8)
                    names = ["has no tensor model.layers.0.self_attn.q_norm.weight"]
                error = self.go("--init-from", folder, returncode=2)
                for name in names:
                    self.assertIn(name.split(", ")[-1], error)

    def test_an_own_head_is_no_tied_one(self):
        folder = save_llama(self.dir / "hub")
        tied = "model.share_embeddings_and_output_weights=true"
        accept = self.refused("--init-from", folder, tied, names=["tie_word_embeddings"])
        accept = " ".join(accept).split()
        self.refused("--init-from", folder, tied, *accept, names=["lm_head.weight"])
        self.go("--init-from", folder, tied, *accept, "--accept-difference", "weights")

    def test_what_is_no_key_is_refused(self):
        folder = save_llama(self.dir / "hub")
        error = self.go(
            "--init-from", folder, "--accept-difference", "model.rope_teta", returncode=2
        )
        self.assertIn("did you mean `model.rope_theta`", error)


class Megatron(Case):
    def test_each_argument_is_named(self):
        self.assertNotIn("do not say", self.go("--init-from", self.megatron()))
        others = dict(
            rotary_base=500000,
            norm_epsilon=0.1,
            apply_layernorm_1p=True,
            swiglu=False,
            rotary_percent=0.5,
            window_size=(3, 0),
            use_rope_scaling=True,
            num_query_groups=4,
            num_attention_heads=8,
            kv_channels=4,
            softmax_type="learnable",
            rotary_interleaved=True,
            qk_layernorm=True,
            add_qkv_bias=True,
            untie_embeddings_and_output_weights=False,
        )
        names = [f"args.{name}" for name in others]
        folder = self.megatron(**others)
        accept = " ".join(self.refused("--init-from", folder, names=names)).split()
        self.refused("--init-from", folder, *accept[2:], names=[accept[1].split(".")[-1]])
        for name in ("normalization", "position_embedding_type"):
            value = {"normalization": "LayerNorm"}.get(name, "none")
            self.refused("--init-from", self.megatron(**{name: value}), names=["args." + name])

    def test_weights_that_the_model_does_not_have_are_named(self):
        attention = "decoder.layers.self_attention."
        cases = {
            "self_attn.q_proj.bias": {attention + "linear_qkv.bias": torch.ones(2, 64)},
            "softmax_offset": {attention + "core_attention.softmax_offset": torch.ones(2, 4)},
            "self_attn.q_norm.weight": {attention + "q_layernorm.weight": torch.ones(2, 8)},
            "mtp.layers.0": {"mtp.layers.0.enorm.weight": torch.ones(32)},
        }
        for name, more in cases.items():
            with self.subTest(name):
                self.refused("--init-from", self.megatron(more), names=[name])
        folder = self.megatron(layers=3, num_layers=2)
        self.refused("--init-from", folder, names=["layers.2."])
        for door in (("reshard",), ("convert", "--to", "native")):
            out = self.dir / door[0]
            error = self.trellis(
                *("checkpoint", door[0], folder, *door[1:], "--weights-only"),
                *("--config", "tiny.yaml", "--out", out),
                returncode=2,
            ).stderr
            self.assertIn("layers.2.", error)
            self.assertFalse(out.exists())


class Own(Case):
    def test_another_model_is_refused_and_another_run_is_said(self):
        saved = self.saved()
        resumes = (f"exp_manager.resume_from_checkpoint={saved}", "trainer.max_steps=4")
        for door in (resumes, ("--init-from", saved)):
            self.refused(*door, "model.rope_theta=500", names=["rope_theta", "10000", "500"])
            self.refused(*door, "model.layernorm_epsilon=0.1", names=["layernorm_epsilon"])
            self.refused(*door, "model.num_layers=1", names=["num_layers"])
            error = self.refused(
                *(*door, "model.num_layers=1", "--accept-difference", "num_layers"),
                names=["model.layers.1.", "weights that the model"],
            )
            self.assertEqual(error, ["--accept-difference weights"])
        (self.dir / "rows.jsonl").write_text('{"input": "a tree", "output": "and"}\n')
        evaluates = ("evaluate", "tiny.yaml", "--data", "rows.jsonl", "--checkpoint", saved)
        self.assertIn(
            "model.layers.1.",
            self.trellis(
                *(*evaluates, "model.num_layers=1", "--accept-difference", "num_layers"),
                returncode=2,
            ).stderr,
        )
        error = self.trellis(
            *("checkpoint", "reshard", saved, "model.rope_theta=500", "--out", "out"),
            returncode=2,
        ).stderr
        self.assertIn("rope_theta", error)

        shutil.copy(self.dir / "words.txt", self.dir / "other.txt")
        said = self.go(*resumes, "data.train_dir=other.txt", "model.optim.betas=[0.8, 0.95]")
        self.assertIn("model.optim.betas was [0.9, 0.95], and is [0.8, 0.95] from here on", said)
        self.assertIn('data.train_dir was "words.txt", and is "other.txt"', said)
        self.assertEqual(said.count("from here on"), 2, said)

    def test_layout_paths_and_logging_say_nothing(self):
        saved = self.saved()
        said = self.go(
            f"exp_manager.resume_from_checkpoint={saved}",
            "trainer.max_steps=4",
            "trainer.devices=2",
            "distributed_strategy.tensor_model_parallel_size=2",
            "trainer.log_every_n_steps=2",
            "exp_manager.create_tensorboard_logger=true",
            "model.fusions.flash_attention=false",
            *SAVES,
        )
        self.assertNotIn("from here on", said)
        self.assertNotIn("warning", said.lower())

    def test_a_schedule_that_lasts_longer_and_a_run_that_is_done_are_said(self):
        sched = "model.optim.sched={name: CosineAnnealing, min_lr: 1.0e-4}"
        saved = self.saved(sched)
        resumes = f"exp_manager.resume_from_checkpoint={saved}"
        said = self.go(resumes, sched, "trainer.max_steps=4")
        self.assertIn("model.optim.sched was 2 steps long", said)
        fixed = "model.optim.sched={name: CosineAnnealing, min_lr: 1.0e-4, max_steps: 2}"
        self.assertNotIn("from here on", self.go(resumes, fixed, "trainer.max_steps=4"))
        said = self.go(resumes, sched, "trainer.max_steps=2", log="done")
        self.assertIn("nothing is left to do", said)

    def test_files_of_nxd_without_a_manifest(self):
        saved = self.saved()
        (saved / "manifest.json").unlink()
        for door in ("--init-from", "exp_manager.resume_from_checkpoint="):
            door = ("--init-from", saved) if door.startswith("--") else (f"{door}{saved}",)
            self.refused(*door, "model.rope_theta=500", names=["rope_theta"])
        fewer = ("model.num_layers=1", "--accept-difference", "model.num_layers")
        self.refused("--init-from", saved, *fewer, names=["model.layers.1."])

    def test_what_says_nothing_of_its_model_is_named_once(self):
        saved = self.saved()
        self.trellis("checkpoint", "convert", saved, "--to", "full", "--out", "full")
        said = self.go("--init-from", self.dir / "full")
        self.assertEqual(said.count("has no configuration of a training"), 1, said)

    def test_init_from_says_what_it_takes_the_place_of(self):
        saved = self.saved()
        said = self.go("exp_manager.resume_from_checkpoint=other", "--init-from", saved)
        self.assertIn("takes the place of", said)
        self.assertIn("resume_from_checkpoint other", said)


if __name__ == "__main__":
    unittest.main()
