"""Operators of higher order on the device. PyTorch has lists of devices: of those whose autocast
such operators (torch.cond, loops) pass through, of those with flex attention, of those whose
generators a compiled checkpoint restores."""

import torch

from .. import neuron

FLEX_OPERATOR = "torch._higher_order_ops.flex_attention"
FLEX = "torch.nn.attention.flex_attention"
RANDOM = "torch._prims.rng_prims"
_AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1


def register() -> None:
    default = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if _AUTOCAST not in default:
        default.append(_AUTOCAST)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(_AUTOCAST)


def register_flex_operator(module) -> None:
    """Under autocast it casts queries, keys and values, as PyTorch's own for CUDA and the CPU."""

    @module.flex_attention.py_impl(_AUTOCAST)
    def cast(query, key, value, *args, **kwargs):
        dtype = torch.get_autocast_dtype(neuron.NAME)
        tensors = [module._autocast_cast(x, neuron.NAME, dtype) for x in (query, key, value)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
            return module.flex_attention(*tensors, *args, **kwargs)


def register_flex(module) -> None:
    """The composite kernel runs: it needs nothing of a device."""
    validate = module._validate_device

    def validate_device(query, key, value):
        if query.device.type != neuron.NAME:
            validate(query, key, value)

    module._validate_device = validate_device


def register_random(module) -> None:
    """What a compiled checkpoint calls around dropout, in its forward pass and when it repeats."""

    def save(op, *args, **kwargs):
        return neuron.get_rng_state(), op(*args, **kwargs)

    def restore(state, op, *args, **kwargs):
        now = neuron.get_rng_state()
        neuron.set_rng_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            neuron.set_rng_state(now)

    select = torch._C.DispatchKey.BackendSelect
    for operator, own, leading in (
        (module.run_and_save_rng_state, save, 1),
        (module.run_with_rng_state, restore, 2),
    ):
        operator.py_impl(torch._C.DispatchKey.PrivateUse1)(own)
        operator.py_kernels[select] = _of_device(
            module.get_device, own, operator.py_kernels[select], leading
        )
        operator._dispatch_cache.clear()


def _of_device(device_of, own, others, leading):
    """`leading` arguments are not the operation's: the state is a tensor on the CPU."""

    def choose(*args, **kwargs):
        function = own if device_of(args[leading:], kwargs) == neuron.NAME else others
        return function(*args, **kwargs)

    return choose
