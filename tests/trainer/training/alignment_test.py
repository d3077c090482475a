"""Supervised fine-tuning, DPO and ORPO against TRL's formulas over transformers' Llama, from the
same JSONL: losses, rewards and margins of twenty steps, on one rank and on TP 2 × PP 2 × DP 2; the
cache of the reference model. Environment: ALIGNMENT_PROGRAM, the program."""

import json
import math
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import torch
import transformers
from torch.nn import functional
from torch.utils.data.distributed import DistributedSampler

IGNORED, EOS, S, VOCABULARY, STEPS, BATCH = -100, 256, 32, 264, 20, 8
TOLERANCE = 1e-5
CONFIG = """
name: alignment
model_source: {source}
seed: 77
trainer: {{devices: {devices}, max_steps: {steps}, gradient_clip_val: 1.0}}
exp_manager: {{create_tensorboard_logger: false}}
distributed_strategy:
  tensor_model_parallel_size: {tp}
  pipeline_model_parallel_size: {pp}
  sequence_parallel: {sp}
data:
  micro_batch_size: {mbs}
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
  init_method_std: 0.1
  {model}
  optim: {{name: adamw, lr: 1.0e-3, weight_decay: 0.0, betas: [0.9, 0.999]}}
model_alignment_strategy: {strategy}
precision: {{type: fp32}}
"""
HF = "fusions: {flash_attention: true}"
MEGATRON = (
    "normalization: rmsnorm, activation: swiglu, position_embedding_type: rope, has_bias: false"
)
ONE = dict(tp=1, pp=1, devices=1, sp="false")
EIGHT = dict(tp=2, pp=2, devices=8, sp="true")


def ids(text):
    return list(text.encode())


def pairs(count=44):
    rng = random.Random(4)

    def text(most):
        return "".join(rng.choice("abcdef gh") for _ in range(rng.randint(1, most)))

    return [
        dict(prompt=text(12), chosen=text(14), rejected=text(14), input=text(9), output=text(11))
        for _ in range(count)
    ]


def order(count, steps):
    """Records of each step."""
    sampler = DistributedSampler(range(count), 1, 0, shuffle=True, drop_last=True)
    batches, epoch = [], 0
    while len(batches) < steps:
        sampler.set_epoch(epoch)
        places = list(sampler)
        batches += [places[i : i + BATCH] for i in range(0, count - BATCH + 1, BATCH)]
        epoch += 1
    return batches[:steps]


def padded(tokens, value):
    return tokens + [value] * (S - len(tokens))


def log_probs(model, prompt, answers):
    """Of each token of the answers, with its mask; and the logits."""
    rows = [(p + a)[:S] for p, a in zip(prompt, answers, strict=True)]
    tokens = torch.tensor([padded(row, EOS) for row in rows])
    mask = torch.zeros(len(rows), S, dtype=torch.bool)
    for i, (p, row) in enumerate(zip(prompt, rows, strict=True)):
        mask[i, len(p) : len(row)] = True
    logits = model(tokens).logits
    each = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return each, mask[:, 1:], logits, rows


def pair_tokens(rows):
    prompt = [ids(row["prompt"]) for row in rows] * 2
    answers = [[*ids(row[key]), EOS] for key in ("chosen", "rejected") for row in rows]
    return prompt, answers


def model_of(weights):
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
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
    model = transformers.LlamaForCausalLM(config)
    state = {}
    for name, tensor in weights.items():
        if "gate_up_proj" in name:
            gate, up = tensor.chunk(2)
            state[name.replace("gate_up_proj", "gate_proj")] = gate
            state[name.replace("gate_up_proj", "up_proj")] = up
        else:
            state[name] = tensor
    model.load_state_dict(state)
    return model


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)


def means(chosen, rejected, logps, beta):
    """What TRL logs of rewards."""
    return {
        "rewards/chosen": chosen.mean().item(),
        "rewards/rejected": rejected.mean().item(),
        "rewards/accuracies": (chosen > rejected).float().mean().item(),
        "rewards/margins": (chosen - rejected).mean().item(),
        "logps/chosen": logps[: len(logps) // 2].mean().item(),
        "logps/rejected": logps[len(logps) // 2 :].mean().item(),
    }


class Trl:
    """Its formulas: a loss and its metrics for the records of a step."""

    def __init__(self, weights, records, beta):
        self.model, self.records, self.beta = model_of(weights), records, beta

    def prepare(self):
        pass

    def train(self):
        self.prepare()
        optimizer, steps = adamw(self.model), []
        for places in order(len(self.records), STEPS):
            optimizer.zero_grad()
            loss, metrics = self.step(places)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            steps.append({"loss": loss.item(), **metrics})
        return steps


class Sft(Trl):
    """The sum over the labels of a global batch, divided by their number once."""

    def step(self, places):
        rows = [self.records[i] for i in places]
        each, mask, _, _ = log_probs(
            self.model,
            [ids(row["input"]) for row in rows],
            [[*ids(row["output"]), EOS] for row in rows],
        )
        return -each[mask].sum() / mask.sum(), {}


class Dpo(Trl):
    def sums(self, places):
        each, mask, _, _ = log_probs(self.model, *pair_tokens([self.records[i] for i in places]))
        return (each * mask).sum(-1)

    def prepare(self):
        with torch.no_grad():
            self.reference = self.sums(range(len(self.records)))

    def step(self, places):
        policy, count = self.sums(places), len(self.records)
        index = torch.tensor(places)
        reference = torch.cat([self.reference[index], self.reference[count + index]])
        ratio = policy - reference
        chosen, rejected = ratio[:BATCH], ratio[BATCH:]
        loss = -functional.logsigmoid(self.beta * (chosen - rejected)).mean()
        return loss, means(
            self.beta * chosen.detach(), self.beta * rejected.detach(), policy.detach(), self.beta
        )


class Orpo(Trl):
    """`trl`: TRL's ORPOTrainer with micro-batches of one pair; else NxDT's."""

    trl = True

    def step(self, places):
        prompt, answers = pair_tokens([self.records[i] for i in places])
        each, mask, logits, rows = log_probs(self.model, prompt, answers)
        p = (each * mask).sum(-1) / mask.sum(-1)
        chosen, rejected = p[:BATCH], p[BATCH:]
        odds = (chosen - rejected) - (
            torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
        )
        ratio = functional.logsigmoid(odds)
        nll = -chosen.mean()
        if self.trl:
            labels = torch.tensor([padded(row[1:], IGNORED) for row in rows[:BATCH]])
            nll = torch.stack(
                [functional.cross_entropy(logits[i], labels[i]) for i in range(BATCH)]
            ).mean()
        metrics = means(self.beta * chosen, self.beta * rejected, p, self.beta)
        metrics |= {
            "nll_loss": nll.item(),
            "log_odds_ratio": ratio.mean().item(),
            "log_odds_chosen": odds.mean().item(),
        }
        return nll - self.beta * ratio.mean(), metrics


class Alignment(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        self.records = pairs()
        self.write(self.records)

    def write(self, records):
        rows = "".join(json.dumps(record) + "\n" for record in records)
        (self.dir / "data.jsonl").write_text(rows)

    def start(self, strategy, layout, *overrides, source="hf", steps=STEPS, mbs=1, run="run"):
        config = self.dir / "run.yaml"
        model = HF if source == "hf" else MEGATRON.replace(", ", "\n  ")
        config.write_text(
            CONFIG.format(
                source=source,
                steps=steps,
                mbs=mbs,
                data=self.dir / "data.jsonl",
                model=model,
                strategy=strategy,
                **layout,
            )
        )
        return subprocess.run(
            [os.environ["ALIGNMENT_PROGRAM"], config, self.dir / "out.pt", self.dir / run]
            + list(overrides),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def train(self, *args, **more):
        done = self.start(*args, **more)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        result = torch.load(self.dir / "out.pt", weights_only=False)
        return dict(result["weights"]), [dict(step) for step in result["steps"]]

    def close(self, got, expected, tolerance=TOLERANCE):
        self.assertEqual(len(got), len(expected))
        worst = 0
        for step, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            self.assertEqual(set(mine), set(theirs))
            for name, value in theirs.items():
                difference = abs(mine[name] - value) / max(1.0, abs(value))
                worst = max(worst, difference)
                self.assertLessEqual(difference, tolerance, f"step {step + 1}: {name}")
        print(f"{self.id().split('.')[-1]}: largest difference {worst:.1e}")

    def check(self, strategy, kind, beta=0.1):
        weights, one = self.train(strategy, ONE)
        expected = kind(weights, self.records, beta).train()
        self.close(one, expected)
        _, eight = self.train(strategy, EIGHT, run="eight")
        self.close(eight, expected)
        return one

    def test_sft(self):
        self.check("{sft: {packing: false}}", Sft)

    def test_dpo(self):
        steps = self.check("{dpo: {kl_beta: 0.1, max_prompt_length: 16}}", Dpo)
        self.assertAlmostEqual(steps[0]["loss"], math.log(2), 6)
        self.assertNotAlmostEqual(steps[-1]["loss"], math.log(2), 3)

    def test_orpo_of_trl(self):
        self.check("{orpo: {beta: 0.1, max_prompt_length: 16, implementation: trl}}", Orpo)

    def test_orpo_of_nxdt(self):
        kind = type("Nxdt", (Orpo,), {"trl": False})
        self.check("{orpo: {beta: 0.1, max_prompt_length: 16}}", kind)

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
