"""The same operators on tensors that are laid out otherwise: strides, channels last, lazy
conjugates and negatives."""

import torch
from case import Skip, family
from opinfo import OPERATORS, compare_samples, samples_of, supported, widest
from transfer import tensors_in


def one_dtype_each():
    for name, op in OPERATORS.items():
        for dtype in widest(op):
            yield name, dtype


def is_strided(sample):
    return all(
        tensor.layout == torch.strided
        for tensor in tensors_in((sample.input, sample.args, sample.kwargs))
    )


@family("strided", "operators on non-contiguous arguments")
class Strided:
    cases = staticmethod(one_dtype_each)

    @staticmethod
    def run(subject, dtype):
        op = OPERATORS[subject]
        compare_samples(
            op, (sample.noncontiguous() for sample in samples_of(op, dtype) if is_strided(sample))
        )


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def to_channels_last(value):
    if isinstance(value, torch.Tensor) and value.dim() in FORMATS and value.layout == torch.strided:
        return value.to(memory_format=FORMATS[value.dim()])
    return value


@family("memory_format", "operators on channels-last arguments: results have the CPU's strides")
class MemoryFormat:
    cases = staticmethod(one_dtype_each)

    @staticmethod
    def run(subject, dtype):
        op = OPERATORS[subject]
        images = [
            s
            for s in samples_of(op, dtype)
            if any(t.dim() in FORMATS for t in tensors_in((s.input, s.args)))
        ]
        if not images:
            raise Skip("no sample with 4 or 5 dimensions")
        compare_samples(op, (sample.transform(to_channels_last) for sample in images))


def lazy_conjugate(value):
    return (
        torch.conj(value.conj().resolve_conj())
        if isinstance(value, torch.Tensor) and value.is_complex()
        else value
    )


def lazy_negative(value):
    if (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and value.layout == torch.strided
    ):
        return torch._neg_view(-value)
    return value


@family(
    "lazy_bits",
    "operators on tensors with the conjugate bit (complex64) or the negative bit (float32)",
)
class LazyBits:
    @staticmethod
    def cases():
        for name, op in OPERATORS.items():
            for dtype in supported(op, ("complex64", "float32")):
                yield name, dtype

    @staticmethod
    def run(subject, dtype):
        op = OPERATORS[subject]
        change = lazy_conjugate if dtype == "complex64" else lazy_negative
        compare_samples(
            op, (sample.transform(change) for sample in samples_of(op, dtype, limit=12))
        )
