"""The other forms of an operator: out=, in place, and views whose base sees what is written through
them."""

import torch
from case import Skip, family
from compare import expect, same, share_storage
from opinfo import (
    OPERATORS,
    agree,
    arguments_of,
    call,
    cases,
    on_both,
    same_arguments,
    samples_of,
    values_of,
)
from transfer import Transfer, tensors_in

SAMPLES = 6
COPIES_INTO_OUT = {"lu"}  # a Python function that copies at the end: out= may be anywhere


def filled(tensor):
    """Memory with contents that no operator would leave by accident."""
    return tensor.fill_(1) if tensor.dtype == torch.bool else tensor.fill_(77)


def like(expected):
    return filled(torch.empty_strided(expected.shape, expected.stride(), dtype=expected.dtype))


def empty(expected):
    return torch.empty(0, dtype=expected.dtype)


def too_large(expected):
    return filled(torch.empty((*expected.shape, 2), dtype=expected.dtype))


def spread(expected):
    """Every second element, dimensions in reverse order."""
    wide = filled(torch.empty((*reversed(expected.shape), 2), dtype=expected.dtype))
    return wide[..., 0].permute(tuple(reversed(range(expected.dim()))))


def other_dtype(expected):
    other = torch.int64 if expected.dtype != torch.int64 else torch.float64
    return filled(torch.empty(expected.shape, dtype=other))


OUTS = {
    "right": like,
    "empty": empty,
    "too large": too_large,
    "spread": spread,
    "other dtype": other_dtype,
}


def make_out(kind, expected):
    return (
        OUTS[kind](expected)
        if isinstance(expected, torch.Tensor)
        else type(expected)(OUTS[kind](t) for t in expected)
    )


def outs_for(expected):
    if isinstance(expected, torch.Tensor):
        return expected.layout == torch.strided
    return isinstance(expected, tuple) and all(isinstance(t, torch.Tensor) for t in expected)


@family(
    "out", "out= of the right shape, empty, too large, strided, of another dtype, on another device"
)
class Out:
    @staticmethod
    def cases():
        return cases(lambda op: op.supports_out, ("float32", "int64", "complex64"))

    @staticmethod
    def run(subject, dtype):
        op, ran = OPERATORS[subject], 0
        for i, sample in enumerate(samples_of(op, dtype, limit=SAMPLES)):
            args, kwargs = arguments_of(sample)
            expected = call(op.op, args, kwargs).result
            expected = (
                tuple(expected) if isinstance(expected, tuple) else expected
            )  # without its names
            if not outs_for(expected):
                continue
            for kind in OUTS:
                neuron, cpu = on_both(op.op, args, {**kwargs, "out": make_out(kind, expected)}, op)
                ran += agree(neuron, cpu, f"sample {i}, out {kind}", values_of(op))
                same(
                    neuron.arguments[1]["out"],
                    cpu.arguments[1]["out"],
                    f"sample {i}, out {kind} afterwards",
                    values_of(op),
                )
            if subject not in COPIES_INTO_OUT and any(
                t.numel() > 1 for t in tensors_in((args, kwargs))
            ):
                moved = Transfer()((args, kwargs))
                refused = call(
                    op.op, moved[0], {**moved[1], "out": make_out("right", expected)}
                ).error
                expect(
                    refused is not None, f"sample {i}, out on cpu", "error", "none", "RuntimeError"
                )
        if ran == 0:
            raise Skip("no sample that the CPU runs with out=")


@family("inplace", "in-place forms change their argument, and nothing else, as on the CPU")
class InPlace:
    @staticmethod
    def cases():
        return cases(
            lambda op: op.get_inplace() is not None,
            ("float32", "bfloat16", "int64", "bool", "complex64"),
        )

    @staticmethod
    def run(subject, dtype):
        op, ran = OPERATORS[subject], 0
        for i, sample in enumerate(samples_of(op, dtype, limit=SAMPLES)):
            args, kwargs = arguments_of(sample)
            if not isinstance(args[0], torch.Tensor):
                continue
            for form, change in (
                ("contiguous", torch.clone),
                ("every second element", every_second),
            ):
                changed = change(args[0])
                neuron, cpu = on_both(op.get_inplace(), (changed, *args[1:]), kwargs, op)
                if agree(neuron, cpu, f"sample {i}, {form}", values_of(op)):
                    ran += 1
                    same(
                        *(whole_storage(c.arguments[0][0]) for c in (neuron, cpu)),
                        f"sample {i}, {form}: memory around it",
                        values_of(op),
                    )
        if ran == 0:
            raise Skip("no sample that the CPU runs in place")


def whole_storage(tensor):
    return tensor.detach().resolve_conj().resolve_neg().new_empty(0).set_(tensor.untyped_storage())


def every_second(tensor):
    """A view of a tensor twice as large: what lies between the elements must stay."""
    wide = filled(torch.empty((*tensor.shape, 2), dtype=tensor.dtype))
    wide[..., 0] = tensor
    return wide[..., 0]


@family(
    "views",
    "an operator that returns a view on the CPU returns one on neuron; writes through it reach "
    "the base",
)
class Views:
    @staticmethod
    def cases():
        return cases(lambda op: True, ("float32", "complex64"))

    @staticmethod
    def run(subject, dtype):
        op, views = OPERATORS[subject], 0
        for i, sample in enumerate(samples_of(op, dtype, limit=SAMPLES)):
            args, kwargs = arguments_of(sample)
            neuron, cpu = on_both(op.op, args, kwargs, op)
            if cpu.error is not None:
                continue
            if neuron.error is not None:
                raise neuron.error
            for got, expected in zip(tensors_in(neuron.result), tensors_in(cpu.result)):
                if any(share_storage(expected, argument) for argument in tensors_in(cpu.arguments)):
                    views += 1
                    expect(
                        got._is_view() == expected._is_view(),
                        f"sample {i}",
                        "is a view",
                        got._is_view(),
                        expected._is_view(),
                    )
                    agree(
                        *(call(torch.Tensor.fill_, (t, 3), {}) for t in (got, expected)),
                        f"sample {i}, written through",
                    )
            if views:
                same_arguments(neuron, cpu, f"sample {i}: base")
        if views == 0:
            raise Skip("no view on the CPU")


@family(
    "mixed_devices",
    "a CPU tensor among neuron tensors is refused with PyTorch's words; a CPU scalar tensor is "
    "taken",
)
class MixedDevices:
    @staticmethod
    def cases():
        from torch.testing._internal.common_methods_invocations import binary_ufuncs

        names = {op.full_name for op in binary_ufuncs} | {
            "mm",
            "bmm",
            "addmm",
            "cat",
            "where",
            "index_select",
            "gather",
            "nn.functional.linear",
            "nn.functional.embedding",
            "nn.functional.conv2d",
            "scatter",
            "lerp",
            "dot",
            "matmul",
        }
        return cases(lambda op: op.full_name in names, ("float32", "int64"))

    @staticmethod
    def run(subject, dtype):
        op, ran = OPERATORS[subject], 0
        for i, sample in enumerate(samples_of(op, dtype, limit=SAMPLES)):
            args, kwargs = arguments_of(sample)
            tensors = list(tensors_in((args, kwargs)))
            if (
                len(tensors) < 2
                or any(t.numel() == 0 or t.dim() == 0 for t in tensors)
                or call(op.op, args, kwargs).error is not None
            ):
                continue
            ran += 1
            transfer = Transfer()
            transfer.keep(tensors[-1])
            refused = call(op.op, *transfer((args, kwargs))).error
            expect(
                isinstance(refused, RuntimeError) and "same device" in str(refused),
                f"sample {i}",
                "error",
                repr(refused)[:200],
                "RuntimeError: Expected all tensors to be on the same device …",
            )
        if ran == 0:
            raise Skip("no sample with two tensors")
