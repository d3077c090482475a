import torch
from case import family
from compare import expect, same, same_error
from neuron_device import DEVICE
from opinfo import SEED, call
from torch.testing._internal.common_optimizers import optim_db

OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db}
STEPS = 3


def train(info, kwargs, device, dtype):
    """Parameters and state after a few steps on a fixed quadratic."""
    generator = torch.Generator().manual_seed(SEED)
    draw = lambda *size: torch.randn(size, generator=generator).to(dtype).to(device)  # noqa: E731
    parameters = [torch.nn.Parameter(draw(10, 5)), torch.nn.Parameter(draw(7, 3))]
    targets = [draw(*p.shape) for p in parameters]
    optimizer = info.optim_cls(parameters, **kwargs)

    def closure():
        optimizer.zero_grad()
        loss = sum(((p - t) ** 2).sum() for p, t in zip(parameters, targets))
        loss.backward()
        if info.only_supports_sparse_grads:
            for p in parameters:
                p.grad = p.grad.to_sparse()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return [p.detach() for p in parameters], optimizer.state_dict()


@family(
    "optimizers",
    "torch.optim: parameters and state after three steps, one tensor at a time, foreach and fused",
)
class Optimizers:
    @staticmethod
    def cases():
        for name, info in OPTIMIZERS.items():
            for form in (
                "forloop",
                *(form for form in ("foreach", "fused") if form in info.supported_impls),
            ):
                for dtype in ("float32", "bfloat16"):
                    yield f"{name}.{form}", dtype

    @staticmethod
    def run(subject, dtype):
        name, form = subject.rsplit(".", 1)
        info, ran = OPTIMIZERS[name], 0
        flags = {
            "forloop": {"foreach": False},
            "foreach": {"foreach": True},
            "fused": {"fused": True},
        }[form]
        if "foreach" not in info.supported_impls:
            flags = {key: value for key, value in flags.items() if key != "foreach"}
        for optimizer_input in info.optim_inputs_func(device="cpu"):
            kwargs = {**optimizer_input.kwargs, **flags}
            if subject == "SGD.fused" and dtype == "bfloat16" and kwargs.get("momentum"):
                # the CPU's kernel reads its momentum buffer before it is written: its own results
                # change from run to run
                continue
            cpu = call(train, (info, kwargs, torch.device("cpu"), getattr(torch, dtype)), {})
            neuron = call(train, (info, kwargs, DEVICE, getattr(torch, dtype)), {})
            if cpu.error is not None:
                same_error(neuron.error, cpu.error, optimizer_input.desc, message=False)
                continue
            if neuron.error is not None:
                raise neuron.error
            compare_training(neuron.result, cpu.result, optimizer_input.desc)
            ran += 1
        expect(ran > 0, subject, "configurations that the CPU runs", 0, "some")


def compare_training(got, expected, where):
    same(got[0], expected[0], f"{where}: parameters")
    for key, state in expected[1]["state"].items():
        for name, value in state.items():
            mine, place = got[1]["state"][key][name], f"{where}: state {key}.{name}"
            if (
                isinstance(value, torch.Tensor) and value.dim() == 0
            ):  # a step counter may live on either device
                expect(mine.item() == value.item(), place, "value", mine.item(), value.item())
            else:
                same(mine, value, place)
