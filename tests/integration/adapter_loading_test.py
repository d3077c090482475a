#!/usr/bin/env python3
"""Training that starts with saved LoRA adapters: losses of PEFT's continued training from PEFT's
folder; adapters that a run saved alone open in other layouts, fused or not, in NxD's layout too;
what does not fit is a named error."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import peft
import torch
import transformers
from safetensors.torch import load_file

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
EOS, S = 256, 32
CONFIG = """
name: adapters
model_source: {source}
seed: 5
trainer: {{devices: {devices}, max_steps: {steps}, gradient_clip_val: 1.0}}
exp_manager:
  explicit_log_dir: {log}
  create_tensorboard_logger: false
  create_checkpoint_callback: {saves}
  checkpoint_callback_params: {{monitor: step, mode: max, save_top_k: 1}}
distributed_strategy:
  tensor_model_parallel_size: {tp}
  pipeline_model_parallel_size: {pp}
  sequence_parallel: {sp}
  kv_replicator: {kv}
  zero1: {zero1}
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
  {strategy}
  peft: {{lora_dropout: 0.0, {peft}}}
precision: {{type: fp32}}
"""
ONE = dict(tp=1, pp=1, devices=1, sp="false", kv=1, zero1="false")
EIGHT = dict(tp=2, pp=2, devices=8, sp="true", kv=1, zero1="true")
TWO = dict(tp=2, pp=1, devices=4, sp="false", kv=1, zero1="false")
FOUR = dict(tp=4, pp=1, devices=4, sp="true", kv=2, zero1="true")
SEPARATE = "fuse_gate_up: false"
FUSED = "qkv_linear: true"
MEGATRON = (
    "normalization: rmsnorm\n  activation: swiglu\n  position_embedding_type: rope\n"
    "  has_bias: false"
)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES = dict(
    vocab_size=264,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=S,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    attn_implementation="eager",
)
LOADED = "load_lora_from_ckpt: true, lora_save_dir: "


def records():
    return [{"input": f"{i} + {i} = ", "output": str(2 * i)} for i in range(8)]


def base_model():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.15)
    return model


def loss_of(model):
    """Of all records: a global batch has them in any order."""
    rows, labels = [], []
    for record in records():
        prompt = list(record["input"].encode())
        answer = [*record["output"].encode(), EOS]
        rows.append((prompt + answer + [EOS] * S)[:S])
        labels.append(([-100] * len(prompt) + answer + [-100] * S)[:S])
    logits = model(torch.tensor(rows)).logits[:, :-1]
    expected = torch.tensor(labels)[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten())


def losses_of_peft(model, steps=3):
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=2e-2, weight_decay=0.0
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)
        rows = "".join(json.dumps(row) + "\n" for row in records())
        (cls.dir / "sums.jsonl").write_text(rows)
        cls.hub = cls.dir / "hub"
        base_model().save_pretrained(cls.hub)
        cls.runs = 0

    def start(
        self,
        layout,
        adapters,
        *more,
        model=SEPARATE,
        source="hf",
        steps=3,
        saves=False,
        base="",
        strategy="sft: {}",
    ):
        type(self).runs += 1
        self.log = self.dir / f"run{self.runs}"
        config = self.dir / "run.yaml"
        config.write_text(
            CONFIG.format(
                log=self.log,
                data=self.dir / "sums.jsonl",
                peft=adapters,
                model=model,
                strategy=strategy,
                source=source,
                steps=steps,
                saves=str(saves).lower(),
                **layout,
            )
        )
        if base == "":
            base = self.hub if source == "hf" else None
        base = () if base is None else ("--init-from", base)
        return subprocess.run(
            [str(TRELLIS), "train", config, "--device", "cpu", *map(str, (*base, *more))],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )

    def losses(self, *args, **more):
        done = self.start(*args, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])
        lines = (self.log / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def close(self, got, expected, tolerance=1e-5):
        self.assertEqual(len(got), len(expected))
        for step, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            self.assertLessEqual(abs(mine - theirs), tolerance, f"{step}: {got} {expected}")

    def adapter(self, name, same_a=False, **config):
        """A folder of PEFT whose A and B are not zero, and the losses of its training."""
        folder = self.dir / name
        config = {"r": 4, "lora_alpha": 8, "target_modules": ALL, **config}
        model = peft.get_peft_model(
            transformers.AutoModelForCausalLM.from_pretrained(self.hub),
            peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **config),
        )
        torch.manual_seed(7)
        own = dict(model.named_parameters())
        with torch.no_grad():
            for key, parameter in own.items():
                if "lora_" in key:
                    parameter.normal_(0, 0.1)
            for key, parameter in own.items():
                if same_a and "lora_A" in key:
                    for part, first in (("k_proj", "q_proj"), ("v_proj", "q_proj")):
                        parameter.copy_(own[key.replace(part, first)])
                    parameter.copy_(own[key.replace("up_proj", "gate_proj")])
        model.save_pretrained(folder)
        return folder, model


class FromPeft(Case):
    def test_a_scale_that_the_folder_leaves_out_is_pefts(self):
        folder, _ = self.adapter("unscaled", lora_alpha=16)
        file = folder / "adapter_config.json"
        content = json.loads(file.read_text())
        del content["lora_alpha"]
        file.write_text(json.dumps(content))
        base = transformers.AutoModelForCausalLM.from_pretrained(self.hub)
        expected = losses_of_peft(peft.PeftModel.from_pretrained(base, folder, is_trainable=True))
        self.close(self.losses(ONE, LOADED + str(folder)), expected)

    def test_losses_of_pefts_continued_training(self):
        """The configuration names no rank, scale or targets: the folder says them."""
        folder, model = self.adapter("all", use_rslora=True)
        expected = losses_of_peft(model)
        self.close(self.losses(ONE, LOADED + str(folder)), expected)
        self.close(self.losses(EIGHT, LOADED + str(folder)), expected)
        without = losses_of_peft(
            peft.get_peft_model(
                transformers.AutoModelForCausalLM.from_pretrained(self.hub), peft.LoraConfig(r=4)
            ),
            steps=1,
        )
        self.assertGreater(abs(expected[0] - without[0]), 1e-3)

    def test_embedding_head_and_whole_modules(self):
        folder, model = self.adapter(
            "whole",
            target_modules=["embed_tokens", "lm_head", "down_proj"],
            modules_to_save=["model.norm"],
        )
        self.close(self.losses(EIGHT, LOADED + str(folder)), losses_of_peft(model))

    def test_a_pattern_in_some_layers(self):
        folder, model = self.adapter("pattern", target_modules=r".*layers\.1\..*(q|o)_proj")
        self.close(self.losses(EIGHT, LOADED + str(folder)), losses_of_peft(model))

    def test_layers_that_lie_in_one(self):
        """One A serves them: exact where PEFT's A's are the same, an error where they are not."""
        folder, model = self.adapter("same", same_a=True)
        with torch.no_grad():
            first = [loss_of(model).item()]
        fused = "qkv_linear: true\n  fuse_gate_up: true"
        for layout in (ONE, FOUR):
            self.close(self.losses(layout, LOADED + str(folder), model=fused, steps=1), first)
        folder, _ = self.adapter("other")
        done = self.start(ONE, LOADED + str(folder), model=fused)
        self.assertEqual(done.returncode, 2, done.stderr)
        for text in (
            "model.layers.0.mlp.gate_up_proj holds these layers in one and has one A",
            "model.fuse_gate_up false",
            "model.qkv_linear false",
        ):
            self.assertIn(text, done.stderr)


class Preferences(Case):
    """DPO that starts with saved adapters: the reference has them, or is the base alone."""

    BETA = 0.5

    def log_probs(self, model, record, answer):
        prompt = list(record["prompt"].encode())
        tokens = torch.tensor([prompt + [*record[answer].encode(), EOS]])
        with torch.no_grad():
            logs = model(tokens).logits[0, :-1].log_softmax(-1)
        picked = logs.gather(1, tokens[0, 1:, None])[:, 0]
        return picked[len(prompt) - 1 :].sum()

    def pairs(self):
        return [
            {"prompt": f"{i} + {i} = ", "chosen": str(2 * i), "rejected": str(2 * i + 7)}
            for i in range(8)
        ]

    def loss_against(self, policy, reference):
        losses = []
        for pair in self.pairs():
            gains = [
                self.log_probs(policy, pair, answer) - self.log_probs(reference, pair, answer)
                for answer in ("chosen", "rejected")
            ]
            losses.append(-torch.nn.functional.logsigmoid(self.BETA * (gains[0] - gains[1])))
        return torch.stack(losses).mean().item()

    def first_loss(self, folder, reference):
        (self.dir / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in self.pairs()))
        dpo = f"kl_beta: {self.BETA}, max_prompt_length: 16" + reference
        (loss,) = self.losses(
            ONE,
            LOADED + str(folder),
            f"data.train_dir={self.dir / 'pairs.jsonl'}",
            strategy=f"dpo: {{{dpo}}}",
            steps=1,
        )
        return loss

    def test_the_key_says_which(self):
        folder, policy = self.adapter("pairs")
        base = transformers.AutoModelForCausalLM.from_pretrained(self.hub)
        expected = self.loss_against(policy.eval(), base.eval())
        self.assertGreater(abs(expected - math.log(2)), 1e-3)
        for reference in ("", ", reference: base"):
            self.assertAlmostEqual(self.first_loss(folder, reference), expected, delta=1e-4)
        of_start = self.first_loss(folder, ", reference: start")
        self.assertAlmostEqual(of_start, math.log(2), delta=1e-5)


class OfRuns(Case):
    """Three steps, then two more: from the checkpoint's weights, and from the adapters alone."""

    def saved(self, layout, targets, **more):
        folder = self.dir / f"saved{self.runs}"
        numbers = f"lora_rank: 4, lora_alpha: 8, target_modules: {targets}"
        self.losses(layout, f"{numbers}, lora_save_dir: {folder}", saves=True, **more)
        (checkpoint,) = (self.log / "checkpoints").glob("*-last.ckpt")
        return folder, checkpoint, self.losses(layout, numbers, base=checkpoint, steps=2, **more)

    def test_other_layouts_fused_or_not(self):
        targets = "[qkv_proj, o_proj, gate_up_proj, down_proj]"
        folder, checkpoint, expected = self.saved(EIGHT, targets, model="fuse_gate_up: true")
        tag = checkpoint.name
        self.assertIn(folder / tag / "done", list(folder.glob("*/done")))
        self.assertLess(
            sum(path.stat().st_size for path in (folder / tag / "model").iterdir()),
            sum(path.stat().st_size for path in (checkpoint / "model").iterdir()) / 2,
        )
        loaded = LOADED + str(folder)
        same = self.losses(
            EIGHT, f"{loaded}, lora_load_tag: {tag}", model="fuse_gate_up: true", steps=2
        )
        self.assertEqual(same, expected)
        separate = self.losses(ONE, loaded, model=SEPARATE, steps=2)
        self.close(separate[:1], expected[:1])
        # A checkpoint with the base's weights is a source too; NxD's folder has no manifest.
        numbers = f", lora_rank: 4, lora_alpha: 8, target_modules: {targets}"
        whole = LOADED + str(checkpoint) + numbers
        self.close(self.losses(TWO, whole, model="fuse_gate_up: true", steps=2), expected)
        for manifest in folder.glob("*/manifest.json"):
            manifest.unlink()
        self.close(self.losses(TWO, loaded, model="fuse_gate_up: true", steps=2), expected)

    def test_replicated_heads(self):
        model = f"{FUSED}\n  fuse_gate_up: true"
        folder, _, expected = self.saved(FOUR, "[qkv_proj, o_proj]", model=model)
        separate = f"{model}\n  fuse_qkv: false"
        self.close(self.losses(ONE, LOADED + str(folder), model=separate, steps=2), expected)

    def test_megatron_models(self):
        """The base is the seed's: the same in both runs."""
        more = dict(model=MEGATRON, source="megatron")
        folder, _, expected = self.saved(
            EIGHT, "[qkv_proj, o_proj, gate_up_proj, down_proj]", **more
        )
        self.close(self.losses(ONE, LOADED + str(folder), steps=2, **more), expected)

    def test_a_file_of_one_device(self):
        """NxD's adapter_model.pt, with its configuration in it."""
        folder, model = self.adapter("single")
        tensors = load_file(folder / "adapter_model.safetensors")
        content = {key.removeprefix("base_model.model."): value for key, value in tensors.items()}
        content["lora_config"] = {"lora_rank": 4, "lora_alpha": 8, "use_rslora": False}
        single = self.dir / "one"
        single.mkdir()
        torch.save(content, single / "adapter_model.pt")
        numbers = f", lora_rank: 4, lora_alpha: 8, target_modules: [{', '.join(ALL)}]"
        loaded = LOADED + str(single) + numbers
        self.close(self.losses(EIGHT, loaded), losses_of_peft(model))
        done = self.start(ONE, loaded.replace("lora_alpha: 8", "lora_alpha: 16"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("peft.lora_alpha: expected 8, as ", done.stderr)

    def test_a_training_that_goes_on_has_its_adapters(self):
        folder, _ = self.adapter("first")
        loaded = LOADED + str(folder)
        self.losses(EIGHT, loaded, saves=True, steps=2)
        (checkpoint,) = (self.log / "checkpoints").glob("*-last.ckpt")
        straight = self.losses(EIGHT, loaded, steps=3)
        resumed = self.losses(
            EIGHT, loaded, f"exp_manager.resume_from_checkpoint={checkpoint}", base=None, steps=3
        )
        self.assertEqual(resumed, straight[2:])

    def test_answers_of_an_adapted_model(self):
        folder, model = self.adapter("evaluated")
        self.start(ONE, LOADED + str(folder), steps=1)
        done = subprocess.run(
            [str(TRELLIS), "evaluate", self.dir / "run.yaml", "--data", self.dir / "sums.jsonl"]
            + ["--checkpoint", self.hub, "--metrics", "loss", "--device", "cpu", "--json"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        with torch.no_grad():
            self.assertAlmostEqual(json.loads(done.stdout)["loss"], loss_of(model).item(), 5)


class Mixtures(Case):
    """Attention of a mixture takes adapters; experts, which are stacked, do not."""

    MOE = "moe: {num_experts: 4, top_k: 2, dropless: true, capacity_factor: 0.0}"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(4)
        config = transformers.MixtralConfig(
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            **SIZES,
        )
        model = transformers.MixtralForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.15)
        cls.hub = cls.dir / "mixture"
        model.save_pretrained(cls.hub)

    def test_losses_of_pefts_continued_training(self):
        folder, model = self.adapter("mixed", target_modules=["q_proj", "v_proj", "o_proj"])
        expected = losses_of_peft(model)
        loaded = LOADED + str(folder)
        layout = "distributed_strategy.expert_model_parallel_size=2"
        self.close(self.losses(EIGHT, loaded, layout, model=self.MOE), expected)
        for target in ("down_proj", "gate_up_proj", "router.linear_router"):
            done = self.start(ONE, f"target_modules: [{target}]", model=self.MOE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("takes no adapter", done.stderr)
            self.assertIn("expected some of embed_tokens, k_proj, lm_head, o_proj", done.stderr)


class Qwen2(Case):
    """Biases of what has adapters."""

    kind = "qwen2"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = transformers.AutoConfig.for_model(cls.kind, **SIZES)
        model = transformers.AutoModelForCausalLM.from_config(config)
        torch.manual_seed(4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.15)
        model.save_pretrained(cls.hub)

    def test_losses_of_pefts_continued_training(self):
        folder, model = self.adapter("all")
        sizes = f"model_type: {self.kind}\n  {SEPARATE}"
        got = self.losses(EIGHT, LOADED + str(folder), model=sizes)
        self.close(got, losses_of_peft(model))


class Olmo2(Qwen2):
    """Norms across the heads of what has adapters."""

    kind = "olmo2"


class Refused(Case):
    def refused(self, adapters, *texts, **more):
        done = self.start(ONE, adapters, **more)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def changed(self, folder, **values):
        other = self.dir / "changed"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(folder, other)
        file = other / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
        return LOADED + str(other)

    def test_what_does_not_fit(self):
        folder, _ = self.adapter("small", target_modules=["q_proj", "v_proj"])
        loaded = LOADED + str(folder)
        key = "model_alignment_strategy.peft."
        self.refused(
            f"{loaded}, lora_rank: 8",
            f"{key}lora_rank: expected 4, as {folder}/adapter_config.json says, got 8; write "
            "that, or leave the key out",
        )
        self.refused(f"{loaded}, lora_alpha: 2", f"{key}lora_alpha: expected 8, as ")
        self.refused(f"{loaded}, use_rslora: true", f"{key}use_rslora: expected false, as ")
        self.refused(
            f"{loaded}, target_modules: [q_proj, o_proj]",
            f"{folder}/adapter_model.safetensors: has no adapter, or no whole weight, of "
            "model.layers.0.self_attn.o_proj, model.layers.1.self_attn.o_proj",
            "holds what was trained of model.layers.0.self_attn.v_proj",
        )
        self.refused(f"{loaded}-not", "lora_save_dir", "expected a folder of adapters, found none")
        self.refused(f"{loaded}, lora_load_tag: a.ckpt", "lora_load_tag", "expected saved adapters")
        self.refused("lora_load_tag: a.ckpt", "load_lora_from_ckpt is false")
        self.refused(
            "lora_save_dir: there", "lora_save_dir", "create_checkpoint_callback true, got false"
        )

    def test_another_base(self):
        folder, _ = self.adapter("base", target_modules=["down_proj"])
        done = self.start(ONE, LOADED + str(folder), model=SEPARATE, base=None)
        self.assertIn("random base weights", done.stderr)
        done = self.start(
            ONE, LOADED + str(folder), "model.ffn_hidden_size=64", model=SEPARATE, base=None
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(
            "model.layers.0.mlp.down_proj.lora_A.weight: expected [4, 64], as the configuration's, "
            "got [4, 48]: of another rank, or of another base model",
            done.stderr,
        )

    def test_other_kinds_of_adapters(self):
        folder, _ = self.adapter("kinds", target_modules=["q_proj"])
        for values, text in (
            ({"use_dora": True}, "use_dora: expected false or none, got true"),
            ({"rank_pattern": {"q_proj": 2}}, "rank_pattern: expected {} or none"),
            ({"peft_type": "LOHA"}, 'peft_type: expected "LORA" or none, got "LOHA"'),
            ({"r": 0}, "r: expected an integer of at least 1, got 0"),
            ({"kasa_config": {"beta": 1}}, "kasa_config: expected {} or none"),
            ({"init_lora_weights": "pissa"}, "path_initial_model_for_weight_conversion"),
            ({"init_lora_weights": "olora"}, 'expected true or none, got "olora"'),
        ):
            self.refused(self.changed(folder, **values), "lora_save_dir", text)


if __name__ == "__main__":
    unittest.main()
