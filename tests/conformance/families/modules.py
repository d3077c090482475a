import copy

import torch
from case import Skip, family
from compare import CLOSE, EXACT, expect, same, same_error
from neuron_device import DEVICE
from opinfo import call, dtype_named, seed_all
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from transfer import Transfer, tensors_in

from families.gradients import cotangents

# PyTorch computes these on the CPU with other sums than on every other device (gates of all steps
# at once; unfused cells).
RECURRENT = {"nn.RNN", "nn.LSTM", "nn.GRU", "nn.LSTMCell", "nn.GRUCell"}
MODULES = {}
for info in module_db:
    MODULES[info.name if info.name not in MODULES else f"{info.name}.{info.formatted_name}"] = info


def gradients(module, outcome):
    leaves = [p for p in module.parameters() if p.requires_grad]
    leaves += [t for t in tensors_in(outcome.arguments) if t.requires_grad]
    outputs = [t for t in tensors_in(outcome.result) if t.requires_grad]
    if not outputs or not leaves:
        return None
    return list(torch.autograd.grad(outputs, leaves, cotangents(outputs), allow_unused=True))


@family(
    "modules",
    "torch.nn's modules: forward, backward and buffers equal the CPU's, training and evaluating",
)
class Modules:
    @staticmethod
    def cases():
        for name, info in MODULES.items():
            for mode in ("train", "eval"):
                for dtype in ("float32", "bfloat16", "complex64"):
                    if dtype_named(dtype) in info.supported_dtypes("cpu") or dtype == "bfloat16":
                        yield f"{name}.{mode}", dtype

    @staticmethod
    def run(subject, dtype):
        name, mode = subject.rsplit(".", 1)
        info, ran = MODULES[name], 0
        seed_all()
        inputs = info.module_inputs_func(
            info,
            device="cpu",
            dtype=dtype_named(dtype),
            requires_grad=True,
            training=mode == "train",
        )
        for i, sample in enumerate(inputs):
            if sample.forward_input is not None:
                ran += compare_module(
                    info, sample, mode == "train", dtype_named(dtype), f"input {i} {sample.desc}"
                )
        if ran == 0:
            raise Skip("the CPU runs no input, and neither does neuron")


def compare_module(info, sample, training, dtype, where):
    seed_all()
    module = (
        info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        .to(dtype)
        .train(training)
    )
    transfer, host = Transfer(), Transfer(torch.device("cpu"))
    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    values = CLOSE if info.name in RECURRENT else EXACT
    moved = copy.deepcopy(module).to(DEVICE)
    neuron, cpu = (
        call(moved, transfer(args), transfer(kwargs)),
        call(module, host(args), host(kwargs)),
    )
    if cpu.error is not None:
        same_error(neuron.error, cpu.error, where, message=False)
        return False
    if neuron.error is not None:
        raise neuron.error
    same(neuron.result, cpu.result, f"{where}: result", values)
    expected = call(gradients, (module, cpu), {})
    got = call(gradients, (moved, neuron), {})
    if expected.error is not None:
        same_error(got.error, expected.error, f"{where}: backward", message=False)
    elif got.error is not None:
        raise got.error
    else:
        same(got.result, expected.result, f"{where}: gradients", values)
    same(dict(moved.state_dict()), dict(module.state_dict()), f"{where}: state afterwards", values)
    return True


@family(
    "module_errors",
    "wrong inputs of torch.nn's modules raise the CPU's exception with the CPU's text",
)
class ModuleErrors:
    @staticmethod
    def cases():
        return (
            (name, "float32")
            for name, info in MODULES.items()
            if info.module_error_inputs_func is not None
        )

    @staticmethod
    def run(subject, dtype):
        info, compared = MODULES[subject], 0
        seed_all()
        for i, wrong in enumerate(
            info.module_error_inputs_func(
                info, device="cpu", dtype=dtype_named(dtype), requires_grad=False, training=False
            )
        ):
            sample = wrong.module_error_input
            if wrong.error_on is not ModuleErrorEnum.FORWARD_ERROR:
                continue
            module = info.module_cls(
                *sample.constructor_input.args, **sample.constructor_input.kwargs
            )
            args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
            transfer = Transfer()
            neuron, cpu = (
                call(copy.deepcopy(module).to(DEVICE), transfer(args), transfer(kwargs)),
                call(module, args, kwargs),
            )
            expect(
                cpu.error is not None, f"error input {i}", "the CPU's error", None, wrong.error_type
            )
            same_error(neuron.error, cpu.error, f"error input {i}", message=True)
            compared += 1
        if compared == 0:
            raise Skip("all error inputs concern the constructor")
