"""Megatron's models against the formulas written down with torch.nn.functional, in fp64: every
block type, norm and activation, with biases, grouped queries, partial rotary positions and a
window. And Llama in both families: the same weights, the same logits."""

import itertools
import math
import re
import unittest

import torch
import transformers_test
from torch.nn import functional
from transformers_test import OURS, SEQUENCE, VOCABULARY, llama_weights, run, tokens, values

TOLERANCE = 1e-11
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD = 2, 24, 40, 4, 2, 8
EPS = 1e-5
NORMS = ["layernorm", "layernorm1p", "rmsnorm"]
ACTIVATIONS = ["gelu", "openai-gelu", "geglu", "reglu", "swiglu"]
BLOCKS = ["pre_ln", "post_ln", "normformer", "gpt_j"]
POSITIONS = ["rope", "learned_absolute"]


def norm(x, weights, path, kind):
    if kind == "rmsnorm":
        return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weights[path + ".weight"]
    scale = weights[path + ".weight"] + (1 if kind == "layernorm1p" else 0)
    return functional.layer_norm(x, x.shape[-1:], scale, weights[path + ".bias"], EPS)


def activate(x, kind):
    if kind == "gelu":
        return functional.gelu(x)
    if kind == "openai-gelu":
        return functional.gelu(x, approximate="tanh")
    gate, up = x.chunk(2, -1)
    return {"geglu": functional.gelu, "reglu": functional.relu, "swiglu": functional.silu}[kind](
        gate
    ) * up


def rotary(x, percentage):
    """[b, n, s, d]: the first part of the head is rotated."""
    rotated = int(x.shape[-1] * percentage)
    frequency = 10000.0 ** (-torch.arange(0, rotated, 2, dtype=x.dtype) / rotated)
    angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * frequency
    a, b = x[..., : rotated // 2], x[..., rotated // 2 : rotated]
    return torch.cat(
        [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), x[..., rotated:]], -1
    )


class Model:
    """The formulas. `options` in the words of the YAML."""

    def __init__(self, **options):
        self.options = dict(
            dict(
                normalization="layernorm",
                activation="gelu",
                transformer_block_type="pre_ln",
                position_embedding="rope",
                num_kv_heads=KV_HEADS,
                has_bias=1,
                rotary_percentage=1.0,
                window=None,
                tied=0,
                fused=1,
            ),
            **options,
        )
        torch.manual_seed(3)
        self.weights = {}
        self.make_weights()

    def make(self, name, *shape):
        self.weights[name] = (
            torch.randn(*shape, dtype=torch.float64) * 0.3
            + (0.8 if name.endswith("norm.weight") else 0)
        ).requires_grad_()

    def make_linear(self, path, inputs, outputs):
        self.make(path + ".weight", outputs, inputs)
        if self.options["has_bias"]:
            self.make(path + ".bias", outputs)

    def make_norm(self, path, size=HIDDEN):
        self.make(path + ".weight", size)
        if self.options["normalization"] != "rmsnorm":
            self.make(path + ".bias", size)

    def make_weights(self):
        o = self.options
        self.make("language_model.embedding.word_embeddings.weight", VOCABULARY, HIDDEN)
        if o["position_embedding"] == "learned_absolute":
            self.make("language_model.embedding.position_embeddings.weight", SEQUENCE + 3, HIDDEN)
        for layer in range(LAYERS):
            path = f"language_model.encoder.layers.{layer}"
            self.make_norm(path + ".input_layernorm")
            self.make_norm(path + ".post_attention_layernorm")
            if o["num_kv_heads"] == HEADS:
                self.make_linear(path + ".self_attention.query_key_value", HIDDEN, 3 * HEADS * HEAD)
            else:
                self.make_linear(path + ".self_attention.query", HIDDEN, HEADS * HEAD)
                self.make_linear(
                    path + ".self_attention.key_value", HIDDEN, 2 * o["num_kv_heads"] * HEAD
                )
            self.make_linear(path + ".self_attention.dense", HEADS * HEAD, HIDDEN)
            gated = o["activation"] in ("geglu", "reglu", "swiglu")
            self.make_linear(
                path + ".mlp.dense_h_to_4h", HIDDEN, FFN * (2 if gated and o["fused"] else 1)
            )
            if not o["fused"]:
                self.make_linear(path + ".mlp.dense_h_to_4h_2", HIDDEN, FFN)
            self.make_linear(path + ".mlp.dense_4h_to_h", FFN, HIDDEN)
            if o["transformer_block_type"] == "normformer":
                self.make_norm(path + ".post_attention_normformer_norm")
                self.make_norm(path + ".mlp.normalization", FFN)
        if o["transformer_block_type"] != "post_ln":
            self.make_norm("language_model.encoder.final_layernorm")
        if not o["tied"]:
            self.make("language_model.output_layer.weight", VOCABULARY, HIDDEN)

    def linear(self, x, path):
        return functional.linear(
            x, self.weights[path + ".weight"], self.weights.get(path + ".bias")
        )

    def norm(self, x, path):
        return norm(x, self.weights, path, self.options["normalization"])

    def attention(self, x, path):
        o, kv_heads = self.options, self.options["num_kv_heads"]
        if kv_heads == HEADS:
            q, k, v = (
                self.linear(x, path + ".query_key_value")
                .unflatten(-1, (HEADS, 3 * HEAD))
                .chunk(3, -1)
            )
        else:
            q = self.linear(x, path + ".query").unflatten(-1, (HEADS, HEAD))
            k, v = (
                self.linear(x, path + ".key_value").unflatten(-1, (kv_heads, 2 * HEAD)).chunk(2, -1)
            )
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(HEADS // kv_heads, 1) for part in (k, v))
        if o["position_embedding"] == "rope":
            q, k = rotary(q, o["rotary_percentage"]), rotary(k, o["rotary_percentage"])
        distance = torch.arange(SEQUENCE)[:, None] - torch.arange(SEQUENCE)[None, :]
        visible = (distance >= 0) & (distance < (o["window"] or SEQUENCE))
        scores = (q @ k.transpose(2, 3) / math.sqrt(HEAD)).masked_fill(~visible, -math.inf)
        return self.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), path + ".dense")

    def mlp(self, x, path):
        hidden = self.linear(x, path + ".dense_h_to_4h")
        if not self.options["fused"]:
            hidden = torch.cat([hidden, self.linear(x, path + ".dense_h_to_4h_2")], -1)
        hidden = activate(hidden, self.options["activation"])
        if self.options["transformer_block_type"] == "normformer":
            hidden = self.norm(hidden, path + ".normalization")
        return self.linear(hidden, path + ".dense_4h_to_h")

    def layer(self, x, path):
        block = self.options["transformer_block_type"]

        def first(t):
            return self.norm(t, path + ".input_layernorm")

        def second(t):
            return self.norm(t, path + ".post_attention_layernorm")

        def attention(t):
            return self.attention(t, path + ".self_attention")

        def mlp(t):
            return self.mlp(t, path + ".mlp")

        if block == "gpt_j":
            return x + attention(first(x)) + mlp(second(x))
        if block == "post_ln":
            y = first(x + attention(x))
            return second(y + mlp(y))
        attended = attention(first(x))
        if block == "normformer":
            attended = self.norm(attended, path + ".post_attention_normformer_norm")
        return x + attended + mlp(second(x + attended))

    def logits(self, ids):
        x = self.weights["language_model.embedding.word_embeddings.weight"][ids]
        if self.options["position_embedding"] == "learned_absolute":
            x = x + self.weights["language_model.embedding.position_embeddings.weight"][:SEQUENCE]
        for layer in range(LAYERS):
            x = self.layer(x, f"language_model.encoder.layers.{layer}")
        if self.options["transformer_block_type"] != "post_ln":
            x = self.norm(x, "language_model.encoder.final_layernorm")
        head = "embedding.word_embeddings" if self.options["tied"] else "output_layer"
        return x @ self.weights[f"language_model.{head}.weight"].t()

    def config(self, **more):
        o = self.options
        config = dict(
            architecture="gpt",
            num_layers=LAYERS,
            hidden_size=HIDDEN,
            ffn_hidden_size=FFN,
            num_attention_heads=HEADS,
            num_kv_heads=o["num_kv_heads"],
            head_dim=HEAD,
            encoder_seq_length=SEQUENCE,
            max_position_embeddings=SEQUENCE + 3,
            vocab_size=VOCABULARY,
            layernorm_epsilon=EPS,
            has_bias=o["has_bias"],
            rotary_percentage=o["rotary_percentage"],
            normalization=NORMS.index(o["normalization"]),
            activation=ACTIVATIONS.index(o["activation"]),
            transformer_block_type=BLOCKS.index(o["transformer_block_type"]),
            position_embedding=POSITIONS.index(o["position_embedding"]),
            share_embeddings_and_output_weights=o["tied"],
            **more,
        )
        return dict(config, sliding_window=o["window"]) if o["window"] else config


class Formulas(unittest.TestCase):
    def check(self, model, **more):
        batches = tokens()
        logits = model.logits(batches["input_ids"][0])
        loss = functional.cross_entropy(logits.flatten(0, 1), batches["labels"][0].flatten())
        loss.backward()
        got = run(
            model.config(**more),
            {name: weight.detach() for name, weight in model.weights.items()},
            batches,
        )
        self.assertLess((got["logits"].transpose(0, 1) - logits).abs().max().item(), TOLERANCE)
        self.assertLess((got["losses"][0] - loss).abs().item(), TOLERANCE)
        self.assertEqual(set(got["grads"]), set(model.weights))
        for name, weight in model.weights.items():
            # A key's bias moves all scores of a query alike: its gradient is zero, and what remains
            # of it is rounding.
            error = (got["grads"][name] - weight.grad).norm() / weight.grad.norm().clamp_min(1e-3)
            self.assertLess(error.item(), TOLERANCE * 10, name)

    def test_every_block_with_every_norm(self):
        for block, kind in itertools.product(BLOCKS, NORMS):
            with self.subTest(block=block, norm=kind):
                self.check(Model(transformer_block_type=block, normalization=kind))

    def test_every_activation(self):
        for activation in ACTIVATIONS:
            with self.subTest(activation=activation):
                self.check(Model(activation=activation))

    def test_gates_that_are_separate_layers(self):
        for activation in ("geglu", "reglu", "swiglu"):
            with self.subTest(activation=activation):
                self.check(Model(activation=activation, fused=0), fuse_gate_up=0)

    def test_heads(self):
        for kv_heads, bias in itertools.product((1, 2, 4), (0, 1)):
            with self.subTest(kv_heads=kv_heads, bias=bias):
                self.check(Model(num_kv_heads=kv_heads, has_bias=bias))

    def test_positions(self):
        self.check(Model(rotary_percentage=0.5))
        self.check(Model(position_embedding="learned_absolute"))
        self.check(Model(position_embedding="learned_absolute", tied=1))

    def test_window(self):
        for flash in (0, 1):
            self.check(Model(window=5), flash_attention=flash)

    def test_layer_scaling(self):
        self.check(Model(), flash_attention=0, apply_query_key_layer_scaling=1)


class BothFamilies(unittest.TestCase):
    """Hugging Face's Llama and Megatron's."""

    def megatron(self, tensors, fused):
        """Heads of k and v side by side; with as many key/value heads as query heads all three."""
        places = {"embed_tokens": "embedding.word_embeddings", "norm": "encoder.final_layernorm"}
        weights = {"language_model.output_layer.weight": tensors["lm_head.weight"]}
        for name, tensor in tensors.items():
            if name.startswith("model.layers."):
                path = "language_model.encoder.layers" + name.removeprefix("model.layers")
                for theirs, ours in (
                    ("self_attn", "self_attention"),
                    ("o_proj", "dense"),
                    ("gate_up_proj", "dense_h_to_4h"),
                    ("down_proj", "dense_4h_to_h"),
                ):
                    path = path.replace(theirs, ours)
                weights[path] = tensor
            elif name.startswith("model."):
                weights[f"language_model.{places[name.split('.')[1]]}.weight"] = tensor
        for name in [n for n in weights if "q_proj" in n]:
            q, k, v = (
                weights.pop(name.replace("q_proj", part)).unflatten(0, (-1, 8))
                for part in ("q_proj", "k_proj", "v_proj")
            )
            if fused:
                weights[name.replace("q_proj", "query_key_value")] = torch.cat(
                    [q, k, v], 1
                ).flatten(0, 1)
            else:
                weights[name.replace("q_proj", "query")] = q.flatten(0, 1)
                weights[name.replace("q_proj", "key_value")] = torch.cat([k, v], 1).flatten(0, 1)
        return weights

    def test_same_weights_same_logits(self):
        for kv_heads in (2, 6):
            theirs = llama_weights(
                values(transformers_test.Llama().model(num_key_value_heads=kv_heads))
            )
            config, batches = dict(OURS, num_kv_heads=kv_heads), tokens()
            hf = run(config, theirs, batches)
            gpt = run(
                dict(config, architecture="gpt"), self.megatron(theirs, kv_heads == 6), batches
            )
            self.assertTrue(
                torch.equal(hf["losses"], gpt["losses"]),
                "the same operations on the same numbers: the same bits",
            )
            self.assertTrue(torch.equal(hf["logits"], gpt["logits"]))
            replicating = {
                re.sub(r"([qkv])_proj\.weight", r"qkv_proj.weight_\1", name): tensor
                for name, tensor in theirs.items()
            }
            linear = run(dict(config, qkv_linear=1, fuse_qkv=0), replicating, batches)
            self.assertTrue(torch.equal(hf["logits"], linear["logits"]))
            split = {name: tensor for name, tensor in theirs.items() if "gate_up" not in name}
            for name in [n for n in theirs if "gate_up" in n]:
                split[name.replace("gate_up", "gate")], split[name.replace("gate_up", "up")] = (
                    theirs[name].chunk(2)
                )
            separate = run(dict(config, fuse_gate_up=0), split, batches)
            self.assertLess((hf["logits"] - separate["logits"]).abs().max().item(), 1e-5, "fp32")


if __name__ == "__main__":
    unittest.main()
