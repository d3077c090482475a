"""torch.compile in training: what PyTorch's front end knows of the device, and that a compiled
program computes what the eager one does on the CPU."""

import os
import unittest

import architectures_test
import torch
import torch.nn.functional as F
import trellis_neuron  # noqa: F401
from architectures_test import Architectures
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BACKENDS = ("neuron", "aot_eager", "inductor")
TOLERANCE = 1e-5


def same(test, got, expected, tolerance=TOLERANCE):
    """Largest difference, relative to the largest value."""
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    scale = expected.abs().max().clamp(min=1e-30)
    test.assertLessEqual(((got - expected).abs().max() / scale).item(), tolerance)


class Compiled(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def gradients(self, function, device, *shapes):
        draw = torch.Generator().manual_seed(1)
        inputs = [torch.randn(s, generator=draw).to(device).requires_grad_() for s in shapes]
        result = function(*inputs)
        result.square().sum().backward()
        return [result] + [x.grad for x in inputs]

    def compare(self, function, *shapes, backend="aot_eager", **options):
        expected = self.gradients(function, "cpu", *shapes)
        compiled = torch.compile(function, backend=backend, **options)
        for got, value in zip(self.gradients(compiled, "neuron", *shapes), expected):
            same(self, got, value)

    def test_fused_attention(self):
        q, kv = (2, 4, 6, 8), (2, 2, 6, 8)
        for backend in BACKENDS:
            with self.subTest(backend):
                torch._dynamo.reset()
                self.compare(
                    lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
                    q,
                    backend=backend,
                )
        # Views of gradients: the strides that the front end believes in are those of the device.
        torch._dynamo.reset()
        self.compare(
            lambda x: F.scaled_dot_product_attention(
                *(x.view(2, 6, 3, 4, 8)[:, :, i].transpose(1, 2) for i in range(3))
            ).transpose(1, 2).reshape(2, 6, 32),
            (2, 6, 96),
        )  # fmt: skip
        self.compare(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, kv, kv
        )

    def test_dropout_is_the_eager_one(self):
        def run(function):
            torch.manual_seed(4)
            return self.gradients(function, "neuron", (4, 64))

        function = lambda x: F.dropout(x, 0.3).sin()  # noqa: E731
        for got, expected in zip(run(torch.compile(function, backend="neuron")), run(function)):
            self.assertTrue(torch.equal(got, expected))

    def test_checkpoint_of_a_dropout(self):
        def run(function):
            torch.manual_seed(4)
            return self.gradients(function, "neuron", (4, 64))

        def block(x):
            return F.dropout(x, 0.3).sin()

        def checkpointed(x):
            return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

        compiled = torch.compile(checkpointed, backend="aot_eager")
        for got, expected in zip(run(compiled), run(block)):
            self.assertTrue(torch.equal(got, expected))

    def test_cond_under_autocast(self):
        def function(x, w):
            return torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: -(x @ w), (x,))

        x, w = torch.ones(4, 4, device="neuron"), torch.eye(4, device="neuron")
        for run in (function, torch.compile(function, backend="aot_eager")):
            with torch.autocast("neuron", torch.bfloat16):
                self.assertEqual(run(x, w).dtype, torch.bfloat16)

    def test_what_the_backend_refuses(self):
        x = torch.ones(2, device="neuron")
        for options, message in (
            ({"dynamic": True}, "static shapes"),
            ({"mode": "bogus"}, "expected \"default\", got 'bogus'"),
            ({"mode": "max-autotune"}, "max-autotune"),
            ({"options": {"bogus": 1}}, "bogus"),
        ):
            with self.subTest(options), self.assertRaisesRegex(Exception, message):
                torch._dynamo.reset()
                torch.compile(torch.sin, backend="neuron", **options)(x)
        self.assertTrue(torch.equal(torch.compile(torch.sin, backend="neuron")(x), x.sin()))

    def test_default_backend_says_what_has_no_effect(self):
        compiled = torch.compile(torch.sin, mode="max-autotune-no-cudagraphs")
        with self.assertWarnsRegex(UserWarning, "no effect on the device neuron.*max_autotune"):
            compiled(torch.ones(2, device="neuron"))


class FlexAttention(unittest.TestCase):
    def test_forward_and_backward(self):
        def causal(b, h, q, k):
            return q >= k

        mask = create_block_mask(causal, None, None, 128, 128, device="neuron")
        draw = torch.Generator().manual_seed(2)
        inputs = [torch.randn(1, 2, 128, 16, generator=draw) for _ in range(3)]
        cpu = [x.clone().requires_grad_() for x in inputs]
        expected = F.scaled_dot_product_attention(*cpu, is_causal=True)
        expected.square().sum().backward()
        for function in (flex_attention, torch.compile(flex_attention)):
            torch._dynamo.reset()
            device = [x.to("neuron").requires_grad_() for x in inputs]
            got = function(*device, block_mask=mask)
            got.square().sum().backward()
            same(self, got, expected)
            for a, b in zip(device, cpu):
                same(self, a.grad, b.grad)

    def test_autocast(self):
        x = torch.ones(1, 1, 128, 16, device="neuron")
        with torch.autocast("neuron", torch.bfloat16):
            self.assertEqual(flex_attention(x, x, x).dtype, torch.bfloat16)


class VariableLengths(unittest.TestCase):
    def test_equals_one_attention_per_sequence(self):
        from torch.nn.attention.varlen import varlen_attn

        ends = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
        draw = torch.Generator().manual_seed(3)
        inputs = [torch.randn(9, heads, 8, generator=draw) for heads in (4, 2, 2)]
        for window in ((-1, -1), (-1, 0), (2, 0)):
            cpu = [x.clone().requires_grad_() for x in inputs]
            parts = []
            for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist()):
                at = torch.arange(end - begin)
                seen = torch.ones(end - begin, end - begin, dtype=torch.bool)
                if window[1] == 0:
                    seen &= at[None] <= at[:, None]
                if window[0] >= 0:
                    seen &= at[None] >= at[:, None] - window[0]
                q, k, v = (x[begin:end].transpose(0, 1)[None] for x in cpu)
                one = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
                parts.append(one[0].transpose(0, 1))
            expected = torch.cat(parts)
            expected.square().sum().backward()
            device = [x.to("neuron").requires_grad_() for x in inputs]
            cu = ends.to("neuron")
            got = varlen_attn(*device, cu, cu, 5, 5, window_size=window, enable_gqa=True)
            got.square().sum().backward()
            same(self, got, expected)
            for a, b in zip(device, cpu):
                same(self, a.grad, b.grad)


class Trained(Architectures):
    """Architectures with fused attention: compiled on the device as eager on the CPU. All of them
    with every backend: TRELLIS_ALL_ARCHITECTURES=1."""

    IN_CI = ("test_llama", "test_gpt2", "test_bert")
    is_complete = os.environ.get("TRELLIS_ALL_ARCHITECTURES", "0") != "0"

    def compare(self, make, **inputs):
        # transformers has no fused attention of Gemma 2, whose scores are capped.
        attention = "eager" if self._testMethodName == "test_gemma2" else "sdpa"
        expected, gradients = architectures_test.step(make, inputs, "cpu", attention)
        own = BACKENDS if self.is_complete or self._testMethodName == "test_llama" else ("neuron",)
        for backend in own:
            with self.subTest(backend):
                torch._dynamo.reset()
                losses, of_device = architectures_test.step(
                    make, inputs, "neuron", attention, backend
                )
                for a, b in zip(losses, expected):
                    self.assertLessEqual(abs(a - b), TOLERANCE * abs(b))
                self.assertEqual(of_device.keys(), gradients.keys())
                largest = max(gradient.abs().max() for gradient in gradients.values())
                for name, gradient in of_device.items():
                    difference = (gradient - gradients[name]).abs().max()
                    self.assertLessEqual(difference, TOLERANCE * largest, name)


for _name in dir(Trained):
    if _name.startswith("test_") and (
        _name == "test_mixtures_have_simulated_time"
        or not (Trained.is_complete or _name in Trained.IN_CI)
    ):
        setattr(Trained, _name, None)
del Architectures  # its tests run in their own file


if __name__ == "__main__":
    unittest.main()
