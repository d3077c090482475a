import warnings

import torch
from case import Skip, family
from compare import same
from neuron_device import DEVICE
from opinfo import (
    OPERATORS,
    SEED,
    agree,
    arguments_of,
    on_both,
    samples_of,
    seed_all,
    transfer_for,
    values_of,
)
from transfer import tensors_in

SAMPLES = 12
GRADCHECK_SAMPLES = 3


def wanted(op, dtype):
    return op.supports_autograd and getattr(torch, dtype) in op.supported_backward_dtypes("cpu")


def cotangents(outputs):
    """The same random gradients for both devices."""
    generator = torch.Generator().manual_seed(SEED)
    made = [
        torch.randn(
            t.shape, dtype=t.dtype if t.is_complex() else torch.float32, generator=generator
        ).to(t.dtype)
        for t in outputs
    ]
    return [g.to(t.device) for g, t in zip(made, outputs)]


def backward(op, sample, outcome):
    """Gradients of all inputs that want one."""
    outputs = [
        t for t in tensors_in(sample.output_process_fn_grad(outcome.result)) if t.requires_grad
    ]
    inputs = [t for t in tensors_in(outcome.arguments) if t.requires_grad]
    if not outputs or not inputs:
        return None
    return list(torch.autograd.grad(outputs, inputs, cotangents(outputs), allow_unused=True))


def check_derivatives(op, sample, device):
    """PyTorch's gradcheck: the analytic gradients against finite differences, in one random
    direction."""
    args, kwargs = arguments_of(sample)
    args, kwargs = transfer_for(op, args, device)((args, kwargs))
    inputs = [t for t in tensors_in((args, kwargs)) if t.requires_grad]

    def function(*replacements):
        seed_all()
        swap = transfer_for(op, args, device)
        for old, new in zip(inputs, replacements):
            swap.replace(old, new)
        new_args, new_kwargs = swap((args, kwargs))
        return tuple(
            tensors_in(
                sample.output_process_fn_grad(op.gradcheck_wrapper(op.op, *new_args, **new_kwargs))
            )
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.autograd.gradcheck(
            function, inputs, fast_mode=True, nondet_tol=op.gradcheck_nondet_tol
        )


@family("gradcheck", "gradients in float64 against finite differences")
class Gradcheck:
    @staticmethod
    def cases():
        return ((name, "float64") for name, op in OPERATORS.items() if wanted(op, "float64"))

    @staticmethod
    def run(subject, dtype):
        op, ran = OPERATORS[subject], 0
        for sample in samples_of(op, dtype, requires_grad=True, limit=GRADCHECK_SAMPLES):
            try:
                check_derivatives(op, sample, DEVICE)
                ran += 1
            except Exception:
                check_derivatives_fail_on_the_cpu(op, sample)
        if ran == 0:
            raise Skip("the CPU's gradients fail every sample, too")


def check_derivatives_fail_on_the_cpu(op, sample):
    """Raises the current exception unless the CPU fails the sample as well."""
    try:
        check_derivatives(op, sample, torch.device("cpu"))
    except Exception:
        return
    raise


@family("backward", "gradients equal the CPU's bit for bit")
class Backward:
    @staticmethod
    def cases():
        return (
            (name, dtype)
            for name, op in OPERATORS.items()
            for dtype in ("float32", "bfloat16", "complex64")
            if wanted(op, dtype)
        )

    @staticmethod
    def run(subject, dtype):
        op, ran = OPERATORS[subject], 0
        for i, sample in enumerate(samples_of(op, dtype, requires_grad=True, limit=SAMPLES)):
            args, kwargs = arguments_of(sample)
            neuron, cpu = on_both(op.op, args, kwargs, op)
            if not agree(neuron, cpu, f"sample {i}", values_of(op)):
                continue
            expected = backward(op, sample, cpu)
            got = backward(op, sample, neuron)
            same(got, expected, f"sample {i}: gradients", values_of(op))
            ran += expected is not None
        if ran == 0:
            raise Skip("no sample that the CPU differentiates")
