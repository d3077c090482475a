"""What the comparisons with transformers share: small models of both, and how they are compared."""

import atexit
import functools
import json
import os
import subprocess
import tempfile
import unittest

import torch
from torch.nn import functional

TOLERANCE = 1e-5
STEPS = 20 if os.environ.get("TRELLIS_JUDGE") == "1" else 8  # of a training
BATCH, SEQUENCE, VOCABULARY, LAYERS = 2, 32, 97, 3
IGNORED = -100

LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=LAYERS,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=SEQUENCE,
    rms_norm_eps=1e-5,
    attention_dropout=0.0,
    tie_word_embeddings=False,
)
OURS = dict(
    num_layers=LAYERS,
    hidden_size=48,
    ffn_hidden_size=80,
    num_attention_heads=6,
    num_kv_heads=2,
    encoder_seq_length=SEQUENCE,
    max_position_embeddings=SEQUENCE,
    vocab_size=VOCABULARY,
    layernorm_epsilon=1e-5,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)


def randomize(model):
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
    return model.train()


def tokens(steps=1):
    generator = torch.Generator().manual_seed(9)
    ids = torch.randint(0, VOCABULARY, (steps, BATCH, SEQUENCE + 1), generator=generator)
    return dict(input_ids=ids[..., :-1].contiguous(), labels=ids[..., 1:].contiguous())


def mean_loss(logits, labels, loss_mask=None):
    losses = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    ).view(labels.shape)
    weights = (labels != IGNORED).to(losses.dtype) * (1 if loss_mask is None else loss_mask)
    return (losses * weights).sum() / weights.sum()


@functools.cache
def parity_program():
    """One process for all models; it ends when its input does."""
    program = subprocess.Popen(
        [os.environ["PARITY_PROGRAM"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(program.communicate)
    return program


def run(config, weights, batches, **more):
    """The C++ model on the same numbers."""
    with tempfile.TemporaryDirectory() as directory:
        source, result = os.path.join(directory, "in.pt"), os.path.join(directory, "out.pt")
        torch.save(dict(config=config, weights=weights, **batches, **more), source)
        program = parity_program()
        print(source, result, sep="\n", file=program.stdin, flush=True)
        answer = program.stdout.readline()
        if not answer:
            parity_program.cache_clear()
            raise RuntimeError(f"parity_program ended with {program.wait()}")
        if problem := json.loads(answer):
            raise RuntimeError(f"parity_program: {problem}")
        return torch.load(result, weights_only=False)  # ours: dictionaries of C++ carry a type tag


def llama_weights(tensors):
    """Names of Hugging Face to ours: gate and up are one weight."""
    weights = {
        name: tensor
        for name, tensor in tensors.items()
        if "gate_proj" not in name and "up_proj" not in name
    }
    for name in tensors:
        if "gate_proj" in name:
            parts = [tensors[name], tensors[name.replace("gate_proj", "up_proj")]]
            weights[name.replace("gate_proj", "gate_up_proj")] = torch.cat(parts)
    return weights


def values(model, gradients=False):
    return {
        name: (p.grad if gradients else p.detach()).clone() for name, p in model.named_parameters()
    }


class Comparison(unittest.TestCase):
    """What every family is held to."""

    def loss_of(self, outputs, labels, loss_mask=None):
        return mean_loss(outputs.logits, labels, loss_mask)

    def close(self, got, expected, what):
        worst = (got - expected).abs().max().item()
        print(f"{self.id().split('.')[-1]}: {what}: largest difference {worst:.1e}")
        self.assertLessEqual(worst, TOLERANCE, what)

    def check_forward(self, model, config, convert, batches=None, **inputs):
        batches = batches or tokens()
        outputs = model(batches["input_ids"][0], **inputs)
        logits = outputs.logits
        loss = self.loss_of(
            outputs,
            batches["labels"][0],
            batches["loss_mask"][0] if "loss_mask" in batches else None,
        )
        loss.backward()
        got = run(config, convert(values(model)), batches)
        self.close(got["logits"].transpose(0, 1), logits.detach(), "logits")
        self.close(got["losses"][0], loss.detach(), "loss")
        expected = convert(values(model, gradients=True))
        self.assertEqual(set(got["grads"]), set(expected))
        self.close(
            max((got["grads"][n] - g).norm() / g.norm() for n, g in expected.items()),
            torch.tensor(0.0),
            "gradients, relative",
        )

    def check_training(self, model, config, convert, steps=STEPS):
        batches = tokens(steps)
        before = convert(values(model))
        options = dict(lr=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() == 1]
        optimizer = torch.optim.AdamW(
            [dict(params=matrices), dict(params=vectors, weight_decay=0.0)],
            lr=options["lr"],
            betas=(options["beta1"], options["beta2"]),
            eps=options["eps"],
            weight_decay=options["weight_decay"],
        )
        losses = []
        for ids, labels in zip(batches["input_ids"], batches["labels"]):
            optimizer.zero_grad()
            loss = self.loss_of(model(ids), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        self.close(
            run(config, before, batches, optimizer=options)["losses"],
            torch.stack(losses),
            f"losses of {steps} steps",
        )
