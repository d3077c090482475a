"""What tests of fine-tuning share: records, transformers' Llama with the weights of a run, losses
of the program. Environment: ALIGNMENT_PROGRAM, the program."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import torch
import transformers
from torch.utils.data.distributed import DistributedSampler

IGNORED, EOS, S, VOCABULARY, BATCH = -100, 256, 32, 264, 8
STEPS = 20 if os.environ.get("TRELLIS_JUDGE") == "1" else 8  # the records are read again from 6 on
TOLERANCE = 1e-5
SMALLEST = 0.5  # losses are larger; rewards and margins start at zero, as differences of sums
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
    "normalization: rmsnorm, activation: swiglu, position_embedding_type: rope, "
    "has_bias: false, make_vocab_size_divisible_by: 1"
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
    """Of each token of the answers, with its mask."""
    rows = [(p + a)[:S] for p, a in zip(prompt, answers, strict=True)]
    tokens = torch.tensor([padded(row, EOS) for row in rows])
    mask = torch.zeros(len(rows), S, dtype=torch.bool)
    for i, (p, row) in enumerate(zip(prompt, rows, strict=True)):
        mask[i, len(p) : len(row)] = True
    each = model(tokens).logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return each, mask[:, 1:]


def supervised_loss(model, rows):
    """The sum over the labels of a global batch, divided by their number once."""
    each, mask = log_probs(
        model,
        [ids(row["input"]) for row in rows],
        [[*ids(row["output"]), EOS] for row in rows],
    )
    return -each[mask].sum() / mask.sum()


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


class Formulas:
    """A loss and its metrics for the records of a step."""

    def __init__(self, weights, records, beta):
        self.model, self.records, self.beta = model_of(weights), records, beta

    def train(self):
        optimizer, steps = adamw(self.model), []
        for places in order(len(self.records), STEPS):
            optimizer.zero_grad()
            loss, metrics = self.step(places)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            steps.append({"loss": loss.item(), **metrics})
        return steps


class Case(unittest.TestCase):
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
                difference = abs(mine[name] - value) / max(SMALLEST, abs(value))
                worst = max(worst, difference)
                self.assertLessEqual(difference, tolerance, f"step {step + 1}: {name}")
        print(f"{self.id().split('.')[-1]}: largest difference {worst:.1e}")
