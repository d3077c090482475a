"""PyTorch's autocast lists on neuron: the types that it promises, and the results of casting by
hand."""

import torch
from case import Skip, family
from compare import same, same_error
from opinfo import call, seed_all
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from transfer import Transfer

LOWER = "lower"  # the type that autocast is entered with
# list of the wheel → the type that it casts to (None: the widest of the arguments)
LISTS = {
    "torch_fp16": LOWER,
    "torch_fp32": torch.float32,
    "torch_need_autocast_promote": torch.float32,
    "torch_expect_builtin_promote": None,
    "methods_expect_builtin_promote": None,
    "nn_fp16": LOWER,
    "nn_fp32": torch.float32,
    "linalg_fp16": LOWER,
    "methods_fp16": LOWER,
    "methods_fp32": torch.float32,
}
NAMESPACES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg}


def entries():
    seed_all()
    lists = AutocastTestLists("cpu")
    return {
        f"{name}.{i}.{entry[0]}": (name, entry)
        for name in LISTS
        for i, entry in enumerate(getattr(lists, name))
    }


NAMES = sorted(entries())


def to_type(value, dtype):
    if isinstance(value, torch.Tensor):
        return (
            value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
        )
    if isinstance(value, (list, tuple)):
        return type(value)(to_type(item, dtype) for item in value)
    return value


def function_of(list_name, op):
    kind = list_name.split("_")[0]
    if kind == "methods":
        return lambda self, *args, **kwargs: getattr(self, op)(*args, **kwargs)
    return getattr(NAMESPACES[kind], op)


@family(
    "autocast",
    "torch.autocast('neuron') follows PyTorch's lists; what it computes equals casting by hand "
    "on the CPU",
)
class Autocast:
    @staticmethod
    def cases():
        # PyTorch's promotion list mixes float16 and float32: other lower types are no part of it
        for name in NAMES:
            yield from (
                (name, dtype)
                for dtype in ("float16", "bfloat16")
                if dtype == "float16" or "promote" not in name
            )

    @staticmethod
    def run(subject, dtype):
        list_name, (op, args, *rest) = entries()[subject]
        kwargs = next((item for item in rest if isinstance(item, dict)), {})
        lower = getattr(torch, dtype)
        function, cast = (
            function_of(list_name, op),
            lower if LISTS[list_name] == LOWER else LISTS[list_name],
        )
        transfer = Transfer()
        with torch.autocast("neuron", dtype=lower):
            neuron = call(function, transfer(args), transfer(kwargs))
        cpu = call(function, to_type(args, cast) if cast else args, kwargs)
        if cpu.error is not None:
            same_error(neuron.error, cpu.error, subject, message=False)
            raise Skip("the CPU has no such operator, and neither has neuron")
        if neuron.error is not None:
            raise neuron.error
        same(neuron.result, cpu.result)
