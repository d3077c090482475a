"""Where an operator of PyTorch's database has a type on CUDA and not on the CPU, neuron has it."""

import functools

import torch
from case import Skip, family
from compare import expect
from neuron_device import DEVICE
from opinfo import OPERATORS, arguments_of, seed_all
from torch.utils._pytree import tree_map
from transfer import tensors_in

from families.gradients import cotangents

SAMPLES = 12
# The type in which the CPU computes the expected values.
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
EXPECTED_IN = {
    **{("histc", dtype): torch.float64 for dtype in INTEGERS},
    ("abs", torch.bool): torch.uint8,
    ("trace", torch.bool): torch.int64,
    ("nn.functional.softsign", torch.bool): torch.uint8,
}
NARROWER = {torch.float32: torch.float16, torch.complex64: torch.complex32}

# Their derivatives are made of several operators, and what lies between them leaves half
# precision's range, on CUDA too.
OVERFLOWS = {"logaddexp", "polygamma", "pow"}

# The CPU refuses complex numbers of any width here.
EXPECTED_BY = {
    "nansum": lambda x, *args, **kwargs: torch.where(x.isnan(), 0, x).sum(*args, **kwargs),
    "nanmean": lambda x, *args, **kwargs: (
        torch.where(x.isnan(), 0, x).sum(*args, **kwargs) / (~x.isnan()).sum(*args, **kwargs)
    ),
}

# Pairs that cannot be supported, with the reason. Each is seen to be refused.
UNSUPPORTED = {
    "torch.ops.aten._flash_attention_forward": "an operator of CUDA's libraries, with their "
    "layout of the random state: neuron's attention "
    "is another operator",
    "torch.ops.aten._efficient_attention_forward": "an operator of CUDA's libraries, with their "
    "layout of the random state: neuron's "
    "attention is another operator",
}


def pairs():
    for name, op in OPERATORS.items():
        for dtype in sorted(op.supported_dtypes("cuda") - op.supported_dtypes("cpu"), key=str):
            yield name, str(dtype).removeprefix("torch.")


def converted(value, types):
    """A copy of `value` whose tensors of one type have another; they ask for gradients where the
    first do."""

    def convert(item):
        if isinstance(item, torch.dtype):
            return types.get(item, item)
        if not isinstance(item, torch.Tensor):
            return item
        return (
            item.detach().to(types.get(item.dtype, item.dtype)).requires_grad_(item.requires_grad)
        )

    return tree_map(convert, value)


def close(got, expected, where, overflows=False):
    """Half precision rounds each step, single precision the whole. `overflows`: where the result is
    not finite, nothing is compared."""
    got, expected = got.detach().cpu(), expected.detach().to(got.dtype)
    if overflows:
        expected = torch.where(got.isfinite(), expected, got)
    expect(got.shape == expected.shape, where, "shape", got.shape, expected.shape)
    exact = not (got.is_floating_point() or got.is_complex())
    wide = (
        (lambda t: t)
        if exact
        else functools.partial(
            torch.Tensor.to, dtype=torch.complex128 if got.is_complex() else torch.float64
        )
    )
    largest = (
        0
        if exact or expected.numel() == 0
        else torch.nan_to_num(wide(expected).abs(), posinf=0).max().item()
    )
    tolerance = 0 if exact else 0.02
    torch.testing.assert_close(
        wide(got),
        wide(expected),
        rtol=tolerance,
        atol=tolerance * max(largest, 0.5),
        equal_nan=True,
        msg=lambda m: f"{where}: {m}",
    )


@family("wider", "types that CUDA's kernels take and the CPU's do not")
class Wider:
    @staticmethod
    def cases():
        return pairs()

    @staticmethod
    def run(subject, dtype):
        op, narrow = OPERATORS[subject], getattr(torch, dtype)
        if subject in UNSUPPORTED:
            return refused(op, narrow)
        wide = EXPECTED_IN.get((op.name, narrow), WIDER.get(narrow, narrow))
        differentiable = op.supports_autograd and narrow in op.supported_backward_dtypes("cuda")
        made = (
            narrow if narrow not in WIDER else wide
        )  # PyTorch's samples of a type that the CPU does not have
        seed_all()
        ran = 0
        for i, sample in enumerate(op.sample_inputs("cpu", made, requires_grad=differentiable)):
            if i == SAMPLES:
                break
            ran += compare(
                op,
                sample,
                {
                    made: narrow,
                    **({torch.float32: torch.float16} if narrow == torch.complex32 else {}),
                },
                narrow,
                wide,
                f"sample {i}",
                differentiable,
            )
        if not ran:
            raise Skip("the CPU refuses every sample in the wider type, too")


def compare(op, sample, types, narrow, wide, where, differentiable):
    narrowed = converted(arguments_of(sample), types)
    back = {narrow: wide, **({torch.float16: torch.float32} if narrow == torch.complex32 else {})}
    on_cpu = converted(narrowed, back)
    on_neuron = tree_map(
        lambda v: (
            v.detach().to(DEVICE).requires_grad_(v.requires_grad)
            if isinstance(v, torch.Tensor)
            else v
        ),
        narrowed,
    )
    try:
        seed_all()
        expected = EXPECTED_BY.get(op.name, op.op)(*on_cpu[0], **on_cpu[1])
    except Exception:  # a sample that is an error in every type
        return 0
    seed_all()
    got = op.op(*on_neuron[0], **on_neuron[1])
    for k, (a, b) in enumerate(zip(tensors_in(got), tensors_in(expected), strict=True)):
        if narrow in WIDER:
            expect(
                a.dtype == converted(b, {**NARROWER, wide: narrow}).dtype,
                where,
                "dtype",
                a.dtype,
                b.dtype,
            )
        close(a, b, f"{where}: result {k}")
    if differentiable:
        compare_gradients(sample, got, expected, on_neuron, on_cpu, where, op.name in OVERFLOWS)
    return 1


def compare_gradients(sample, got, expected, on_neuron, on_cpu, where, overflows):
    outputs, inputs = (
        [[t for t in tensors_in(values) if t.requires_grad] for values in both]
        for both in (
            [sample.output_process_fn_grad(got), sample.output_process_fn_grad(expected)],
            [on_neuron, on_cpu],
        )
    )
    if not all((*outputs, *inputs)):
        return
    seeds = [wide.to(narrow.dtype) for wide, narrow in zip(cotangents(outputs[1]), outputs[0])]
    seeds = [[seed.to(t.device, t.dtype) for seed, t in zip(seeds, each)] for each in outputs]
    gradients = [
        torch.autograd.grad(*each, allow_unused=True) for each in zip(outputs, inputs, seeds)
    ]
    for k, (a, b) in enumerate(zip(*gradients, strict=True)):
        expect((a is None) == (b is None), where, f"gradient {k}", a, b)
        if a is not None:
            close(a, b, f"{where}: gradient {k}", overflows)


def refused(op, dtype):
    sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))
    args, kwargs = tree_map(
        lambda v: v.to(DEVICE) if isinstance(v, torch.Tensor) else v, arguments_of(sample)
    )
    try:
        op.op(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        return
    raise AssertionError("listed as unsupported, but it ran: take it off UNSUPPORTED")
