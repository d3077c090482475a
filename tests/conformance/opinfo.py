"""PyTorch's operator database (`op_db` of the wheel) and one way to run an operator on both
devices."""

import collections
import random
import warnings

import numpy
import torch
from case import Skip
from compare import CLOSE, EXACT, UNDEFINED, Mismatch, alias_pattern, expect, same, same_error
from neuron_device import DEVICE
from torch.testing._internal.common_methods_invocations import op_db
from transfer import Transfer, tensors_in

SEED = 20260
DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
OPERATORS = {
    op.full_name: op for op in op_db if not op.name.startswith("jiterator")
}  # those write CUDA source at run time

# Their contents are whatever memory held.
UNDEFINED_VALUES = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}

# LAPACK's least squares give other last bits from call to call on the CPU alone.
UNREPEATABLE = {"linalg.lstsq"}
# They have no tensor to tell them where to work.
FACTORIES = {
    "arange",
    "linspace",
    "linspace.tensor_overload",
    "logspace",
    "logspace.tensor_overload",
    "ones",
    "zeros",
    "full",
    "eye",
    "empty",
    "empty_strided",
    "empty_permuted",
    "randn",
    "scalar_tensor",
}
# PyTorch needs these operators' tensor arguments on the CPU, whatever the device.
HOST_ARGUMENTS = {"tensor_split"}

Outcome = collections.namedtuple("Outcome", "result error arguments")


def dtype_named(name):
    return getattr(torch, name)


def supported(op, names=DTYPES):
    """The dtype names that the operator has on the CPU."""
    have = op.supported_dtypes("cpu")
    return [name for name in names if dtype_named(name) in have]


def cases(select, dtypes):
    """(subject, dtype) for every operator that `select`s and every dtype of `dtypes` that it
    supports."""
    for name, op in OPERATORS.items():
        if select(op):
            for dtype in supported(op, dtypes):
                yield name, dtype


def widest(op):
    """One dtype that represents the operator: its first supported of these."""
    return supported(op, ("float32", "int64", "complex64", "bool", "bfloat16", "float64"))[:1]


def seed_all():
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)


def samples_of(op, dtype, requires_grad=False, limit=None, method="sample_inputs"):
    """PyTorch's samples, made on the CPU with a fixed seed."""
    seed_all()
    for i, sample in enumerate(
        getattr(op, method)("cpu", dtype_named(dtype), requires_grad=requires_grad)
    ):
        if limit is not None and i >= limit:
            return
        yield sample


def call(function, args, kwargs):
    """What `function` returns or raises. The seed is the same for every call on every device."""
    seed_all()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outcome(function(*args, **kwargs), None, (args, kwargs))
    except Exception as error:  # the error is what is compared
        return Outcome(None, error.with_traceback(None), (args, kwargs))


def transfer_for(op, args, device):
    """A Transfer that leaves on the CPU what the operator needs there."""
    transfer = Transfer(device)
    if op is not None and op.name in HOST_ARGUMENTS:
        for tensor in tensors_in(args[1:]):
            transfer.keep(tensor)
    return transfer


def on_both(function, args, kwargs, op=None, place=True):
    """(on neuron, on the CPU), each with its own copy: operators may change arguments. `place`:
    tell factories the device."""
    outcomes = []
    for device in (DEVICE, torch.device("cpu")):
        transfer = transfer_for(op, args, device)
        moved = transfer(tuple(args)), transfer(dict(kwargs))
        if place and op is not None and op.full_name in FACTORIES:
            moved[1].setdefault("device", device)
        outcomes.append(call(function, *moved))
    return outcomes


def agree(neuron, cpu, where, values=EXACT, message=False):
    """Same error, or same result, same aliasing, same arguments afterwards. True: there was a
    result."""
    if cpu.error is not None:
        same_error(neuron.error, cpu.error, where, message)
        return False
    if neuron.error is not None:
        raise neuron.error
    same(neuron.result, cpu.result, f"{where}: result", values)
    expect(
        alias_pattern(neuron.result, neuron.arguments) == alias_pattern(cpu.result, cpu.arguments),
        where,
        "aliasing",
        alias_pattern(neuron.result, neuron.arguments),
        alias_pattern(cpu.result, cpu.arguments),
    )
    same_arguments(neuron, cpu, where, values)
    return True


def same_arguments(neuron, cpu, where, values=EXACT):
    """An operator may change its arguments: the same way on both devices."""
    for i, (got, expected) in enumerate(
        zip(tensors_in(neuron.arguments), tensors_in(cpu.arguments), strict=True)
    ):
        if got is not expected:  # what had to stay on the CPU
            same(got, expected, f"{where}: tensor argument {i} afterwards", values)


def values_of(op):
    return UNDEFINED if op.name in UNDEFINED_VALUES else CLOSE if op.name in UNREPEATABLE else EXACT


def arguments_of(sample):
    return (sample.input, *sample.args), sample.kwargs


def compare_samples(op, samples, function=None, may_refuse=False, **options):
    """Runs every sample on both devices. `may_refuse`: the CPU may refuse all of them, if neuron
    does so too."""
    count = ran = 0
    for count, sample in enumerate(samples, 1):
        args, kwargs = arguments_of(sample)
        neuron, cpu = on_both(function or op.op, args, kwargs, op)
        ran += agree(neuron, cpu, f"sample {count - 1}", values=values_of(op), **options)
    if count == 0:
        raise Skip("no sample")
    if ran == 0:
        raise (Skip if may_refuse else Mismatch)(f"the CPU refuses every sample: {cpu.error}")
