"""Are two results the same? Bit for bit, with their types, strides, aliasing and errors."""

import math
import re

import torch
from transfer import tensors_in


class Mismatch(AssertionError):
    """What differs, where, expected (CPU) and got (neuron)."""


def expect(same, where, what, got, expected):
    if not same:
        raise Mismatch(f"{where}: {what}: expected {expected}, got {got}")


def bits(tensor):
    """The bytes of a CPU tensor as integers, logical order."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in (torch.bool, torch.uint8):
        return tensor
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(by_size[tensor.element_size()])


# What to compare of a tensor's contents.
EXACT = "exact"  # every bit
CLOSE = "close"  # within torch.testing's tolerances: where the CPU does not repeat its own bits
UNDEFINED = "undefined"  # nothing: torch.empty


def same_tensor(got, expected, where="result", values=EXACT, device=None):
    """got is on neuron; expected on the CPU."""
    expect(
        isinstance(got, torch.Tensor), where, "type", type(got).__name__, type(expected).__name__
    )
    if expected.device.type == "cpu":
        expect(
            got.device.type == (device or "neuron"), where, "device", got.device, device or "neuron"
        )
    for property in ("dtype", "layout", "shape", "requires_grad"):
        expect(
            getattr(got, property) == getattr(expected, property),
            where,
            property,
            getattr(got, property),
            getattr(expected, property),
        )
    if expected.layout == torch.strided:
        for property in ("stride", "storage_offset", "is_conj", "is_neg"):
            expect(
                getattr(got, property)() == getattr(expected, property)(),
                where,
                property,
                getattr(got, property)(),
                getattr(expected, property)(),
            )
    if values != UNDEFINED and expected.device.type == "cpu":
        same_values(got, expected, where, values)


def same_values(got, expected, where, values=EXACT):
    host = got.detach().cpu()
    if values == CLOSE:
        torch.testing.assert_close(
            host, expected.detach(), equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
        return
    if expected.layout != torch.strided or expected.is_quantized:
        host, expected = host.to_dense(), expected.to_dense()
    a, b = bits(host), bits(expected)
    if torch.equal(a, b):
        return
    different = (a != b).nonzero()
    at = tuple(different[0].tolist())
    index = at[: expected.dim()]
    raise Mismatch(
        f"{where}: {different.shape[0]} of {a.numel()} values differ, first at {list(index)}: "
        "expected "
        f"{expected.detach()[index].item()}, got {host[index].item()}"
    )


def same(got, expected, where="result", values=EXACT):
    """Compares results of any kind: tensors, numbers, strings, and lists, tuples and dicts of
    them."""
    if isinstance(expected, torch.Tensor):
        same_tensor(got, expected, where, values)
    elif isinstance(expected, (list, tuple)):
        expect(
            type(got) is type(expected) and len(got) == len(expected),
            where,
            "structure",
            describe(got),
            describe(expected),
        )
        for i, (a, b) in enumerate(zip(got, expected)):
            same(a, b, f"{where}[{i}]", values)
    elif isinstance(expected, dict):
        expect(list(got) == list(expected), where, "keys", list(got), list(expected))
        for key in expected:
            same(got[key], expected[key], f"{where}[{key!r}]", values)
    elif isinstance(expected, (float, complex)):
        expect(
            got == expected or (is_nan(got) and is_nan(expected)) or values != EXACT,
            where,
            "value",
            got,
            expected,
        )
    elif isinstance(expected, (int, bool, str, torch.dtype, torch.Size, type(None))):
        expect(got == expected, where, "value", got, expected)
    else:
        expect(
            type(got) is type(expected), where, "type", type(got).__name__, type(expected).__name__
        )


def is_nan(number):
    return number != number or (
        isinstance(number, complex) and (math.isnan(number.real) or math.isnan(number.imag))
    )


def describe(value):
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, (list, tuple))
        else type(value).__name__
    )


def alias_pattern(result, arguments):
    """For each tensor of the result: which tensors (arguments, then earlier results) share its
    storage, and which one it is."""
    known = [t for t in tensors_in(arguments)]
    pattern = []
    for tensor in tensors_in(result):
        shares = [i for i, other in enumerate(known) if share_storage(tensor, other)]
        pattern.append((shares, [i for i in shares if known[i] is tensor]))
        known.append(tensor)
    return pattern


def share_storage(a, b):
    if (
        a.layout != torch.strided
        or b.layout != torch.strided
        or a.device.type == "meta"
        or b.device.type == "meta"
    ):
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


_ADDRESS = re.compile(r"0x[0-9a-f]+")
_STACK = re.compile(r"\nException raised from .*", re.DOTALL)


def plain_message(error):
    """An error's text without what may differ: device names, addresses, C++ stacks."""
    text = _ADDRESS.sub("0x", _STACK.sub("", str(error)))
    for name in ("neuron:0", "PrivateUse1", "privateuseone", "neuron"):
        text = text.replace(name, "cpu")
    return text.lower().strip()


def has_no_kernel(error):
    """The CPU has no kernel for a type that neuron may have, as CUDA does: family `wider` compares
    those."""
    return isinstance(error, NotImplementedError) and "not implemented for" in str(error)


def same_error(got, expected, where, message):
    if got is None and has_no_kernel(expected):
        return
    expect(
        got is not None, where, "error", "none", f"{type(expected).__name__}: {str(expected)[:300]}"
    )
    expect(
        type(got) is type(expected),
        where,
        "error",
        f"{type(got).__name__}: {str(got)[:300]}",
        f"{type(expected).__name__}: {str(expected)[:300]}",
    )
    if message:
        expect(
            plain_message(got) == plain_message(expected),
            where,
            "message",
            plain_message(got)[:400],
            plain_message(expected)[:400],
        )
