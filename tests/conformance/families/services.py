"""What is not an operator: moving, saving, printing, copying, pickling, refusing, float8,
deterministic mode."""

import copy
import functools
import io
import pickle
import warnings

import numpy
import torch
from case import checks, family
from compare import expect, plain_message, same
from neuron_device import DEVICE, OTHER_DEVICE

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def numbers(device="cpu", dtype=torch.float32):
    return torch.arange(24, dtype=torch.float32).reshape(4, 6).to(dtype).to(device)


def refused(function, kind=Exception):
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got none")


def same_refusal(function):
    """function(device) raises the same on neuron and on the CPU."""
    got, expected = (
        refused(lambda: function(DEVICE)),
        refused(lambda: function(torch.device("cpu"))),
    )
    expect(type(got) is type(expected), "refusal", "type", type(got), type(expected))
    expect(
        plain_message(got) == plain_message(expected),
        "refusal",
        "message",
        plain_message(got),
        plain_message(expected),
    )


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@check
def save_and_load():
    value = {
        "a": numbers(DEVICE),
        "b": [numbers(DEVICE, torch.int64)[1:, ::2], torch.tensor(3.0, device=OTHER_DEVICE)],
    }
    loaded = torch.load(saved(value), weights_only=True)
    same(loaded["a"], numbers())
    same(loaded["b"][0], numbers(dtype=torch.int64)[1:, ::2])
    expect(
        loaded["b"][1].device == OTHER_DEVICE,
        "loaded",
        "device",
        loaded["b"][1].device,
        OTHER_DEVICE,
    )


@check
def save_keeps_sharing():
    base = numbers(DEVICE)
    a, b = torch.load(saved([base, base[1]]), weights_only=True)
    b.fill_(5)
    same(a[1], torch.full((6,), 5.0), values="exact") if a[1].storage_offset() == 0 else expect(
        a[1].eq(5).all().item(), "a", "shares", False, True
    )


@check
def load_with_map_location():
    same(torch.load(saved(numbers()), map_location=DEVICE, weights_only=True), numbers())
    same(torch.load(saved(numbers()), map_location="neuron", weights_only=True), numbers())
    back = torch.load(saved(numbers(DEVICE)), map_location="cpu", weights_only=True)
    expect(back.is_cpu and torch.equal(back, numbers()), "map_location", "tensor", back, numbers())
    moved = torch.load(
        saved(numbers(DEVICE)), map_location={"neuron:0": "neuron:1"}, weights_only=True
    )
    expect(moved.device == OTHER_DEVICE, "map_location", "device", moved.device, OTHER_DEVICE)


@check
def module_state():
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
    moved = copy.deepcopy(module).to(DEVICE)
    same(dict(moved.state_dict()), dict(module.state_dict()))
    other = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)).neuron()
    other.load_state_dict(torch.load(saved(module.state_dict()), weights_only=True))
    same(dict(other.state_dict()), dict(module.state_dict()))


@check
def pickling():
    tensor = numbers(DEVICE)[::2]
    same(pickle.loads(pickle.dumps(tensor)), numbers()[::2])
    same(pickle.loads(pickle.dumps(torch.nn.Parameter(tensor))).detach(), numbers()[::2])


@check
def deep_and_shallow_copies():
    tensor = numbers(DEVICE)
    deep = copy.deepcopy([tensor, tensor[0]])
    deep[0].zero_()
    expect(
        deep[1].eq(0).all().item() and tensor[1, 1].item() == 7,
        "deepcopy",
        "sharing",
        deep[1],
        "a view of the copy",
    )
    expect(
        copy.copy(tensor).data_ptr() == tensor.data_ptr(), "copy", "storage", "its own", "shared"
    )
    parameter = copy.deepcopy(torch.nn.Parameter(tensor))
    expect(
        isinstance(parameter, torch.nn.Parameter) and parameter.device == DEVICE,
        "deepcopy",
        "type",
        type(parameter),
        torch.nn.Parameter,
    )


@check
def printing():
    for value in (
        numbers(),
        numbers(dtype=torch.bool),
        torch.tensor(2),
        torch.empty(0, 3),
        numbers().to(torch.complex64),
        torch.randn(2000),
        numbers().bfloat16(),
        numbers().to(torch.float8_e4m3fn),
        torch.tensor([float("nan"), float("inf"), 1e9]),
    ):
        text = repr(value.to(DEVICE))
        plain = "".join(text.split()).replace(",device='neuron:0'", "")
        expect(plain == "".join(repr(value).split()), "repr", str(value.dtype), text, repr(value))


@check
def to_numpy_is_refused():
    error = refused(lambda: numbers(DEVICE).numpy(), TypeError)
    expect(
        "convert neuron:0 device type tensor to numpy" in str(error) and ".cpu()" in str(error),
        "numpy()",
        "message",
        str(error),
        "can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu() …",
    )
    refused(lambda: numpy.asarray(numbers(DEVICE)), TypeError)


@check
def from_numpy():
    array = numpy.arange(6.0)
    same(torch.as_tensor(array, device=DEVICE), torch.as_tensor(array))
    same(torch.tensor(array, device=DEVICE), torch.tensor(array))
    same(torch.tensor([[1, 2], [3, 4]], device=DEVICE), torch.tensor([[1, 2], [3, 4]]))
    same(
        torch.tensor([numbers(DEVICE)[0, 1], numbers(DEVICE)[0, 2]], device=DEVICE),
        torch.tensor([1.0, 2.0]),
    )


@check
def scalars():
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.uint8,
        torch.float8_e5m2,
    ):
        host = torch.tensor(1, dtype=dtype)
        same(host.to(DEVICE).item(), host.item())
        same(host.to(DEVICE).tolist(), host.tolist())
    same(numbers(DEVICE).tolist(), numbers().tolist())
    expect(
        int(torch.tensor(7, device=DEVICE)) == 7 and bool(torch.tensor(True, device=DEVICE)),
        "int()",
        "value",
        "",
        7,
    )
    expect([10, 20, 30][torch.tensor(1, device=DEVICE)] == 20, "__index__", "value", "", 20)
    same_refusal(lambda device: numbers().to(device).item())
    same_refusal(lambda device: bool(numbers().to(device)))


@check
def moving():
    host = numbers()[:, ::2].t()
    same(host.to(DEVICE), host.clone())
    expect(numbers(DEVICE).to(DEVICE).device == DEVICE, "to", "device", "", DEVICE)
    tensor = numbers(DEVICE)
    expect(
        tensor.to(DEVICE) is tensor and tensor.to("neuron") is tensor,
        "to",
        "identity",
        "a copy",
        "itself",
    )
    expect(
        tensor.to(DEVICE, copy=True).data_ptr() != tensor.data_ptr(),
        "to(copy=True)",
        "storage",
        "shared",
        "its own",
    )
    same(tensor.to(torch.bfloat16), numbers(dtype=torch.bfloat16))
    same(tensor.to(OTHER_DEVICE).to(DEVICE), numbers())
    same(tensor.neuron(), numbers())
    same(numbers().to(DEVICE, torch.float64, non_blocking=True), numbers(dtype=torch.float64))
    expect(
        tensor.is_neuron and not numbers().is_neuron, "is_neuron", "value", tensor.is_neuron, True
    )


@check
def copies_between_types_and_devices():
    for source in (
        numbers(),
        numbers(dtype=torch.int64),
        numbers(dtype=torch.bool),
        numbers().to(torch.complex64),
        numbers(dtype=torch.bfloat16),
    ):
        for dtype in (torch.float32, torch.int32, torch.float16, torch.bool, torch.complex64):
            expected = torch.zeros(6, 4, dtype=dtype).t()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected.copy_(source)
                for got, origin in (
                    (torch.zeros(6, 4, dtype=dtype, device=DEVICE).t(), source),
                    (torch.zeros(6, 4, dtype=dtype, device=DEVICE).t(), source.to(DEVICE)),
                ):
                    same(got.copy_(origin), expected, f"{source.dtype} → {dtype}")
                back = torch.zeros(6, 4, dtype=dtype).t().copy_(source.to(DEVICE))
            expect(
                torch.equal(back, expected),
                f"{source.dtype} → {dtype} on the CPU",
                "values",
                back,
                expected,
            )
    same_refusal(lambda device: numbers().to(device).copy_(torch.zeros(5).to(device)))


@check
def lazy_bits_cross_devices():
    host = torch.complex(numbers(), -numbers())
    same(host.conj().to(DEVICE).resolve_conj(), host.conj().resolve_conj())
    expect(
        torch.equal(host.to(DEVICE).conj().cpu().resolve_conj(), host.conj().resolve_conj()),
        "conj().cpu()",
        "values",
        "",
        "conjugated",
    )
    expect(
        torch.equal(host.to(DEVICE).conj().imag.cpu(), host.conj().imag),
        "conj().imag.cpu()",
        "values",
        "",
        "negated",
    )
    target = torch.zeros(4, 6, dtype=torch.complex64, device=DEVICE).conj()
    expect(
        torch.equal(target.copy_(host.to(DEVICE)).resolve_conj().cpu(), host),
        "copy_ into conj",
        "values",
        target,
        host,
    )
    same(host.to(DEVICE).conj()[1, 2].item(), host.conj()[1, 2].item())
    same(torch.view_as_real(host.to(DEVICE)), torch.view_as_real(host))


@check
def float8():
    for dtype in (
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ):
        host = (numbers() + 1).to(dtype)
        same((numbers(DEVICE) + 1).to(dtype), host)
        same(host.to(DEVICE).to(torch.float32), host.to(torch.float32))
        same(host.to(DEVICE).clone().t().contiguous(), host.clone().t().contiguous())
        same(torch.cat([host.to(DEVICE)] * 2), torch.cat([host] * 2))


@check
def scaled_mm():
    a, b = (
        (torch.randn(16, 32) / 3).to(torch.float8_e4m3fn),
        (torch.randn(16, 32) / 3).to(torch.float8_e4m3fn).t(),
    )
    one, half = torch.tensor(1.0), torch.tensor(0.5)
    for out in (torch.float32, torch.bfloat16):
        expected = torch._scaled_mm(a, b, one, half, out_dtype=out)
        same(
            torch._scaled_mm(
                a.to(DEVICE), b.to(DEVICE), one.to(DEVICE), half.to(DEVICE), out_dtype=out
            ),
            expected,
        )


@check
def deterministic_mode():
    index = torch.tensor([0, 1, 0])
    try:
        torch.use_deterministic_algorithms(True)
        for device in ("cpu", DEVICE):
            torch.zeros(4, device=device).index_add_(
                0, index.to(device), torch.ones(3, device=device)
            )
        expect(
            torch.empty(4, device=DEVICE).isnan().all().item(),
            "empty",
            "contents",
            "what memory held",
            "NaN: uninitialised memory is filled",
        )
        expect(
            torch.empty(4, dtype=torch.int32, device=DEVICE).eq(2**31 - 1).all().item(),
            "empty",
            "contents",
            "",
            "the largest integer",
        )
        expect(
            torch.empty_strided((4,), (2,), device=DEVICE).isnan().all().item(),
            "empty_strided",
            "contents",
            "",
            "NaN",
        )
        expect(
            torch.zeros(1, device=DEVICE).resize_(8)[1:].isnan().all().item(),
            "resize_",
            "contents",
            "",
            "NaN",
        )
        same_refusal(
            lambda device: torch.nn.functional.max_unpool2d(
                torch.ones(1, 1, 2, 2).to(device),
                torch.zeros(1, 1, 2, 2, dtype=torch.int64).to(device),
                2,
            )
        )
        same_refusal(
            lambda device: (
                torch.zeros(4)
                .to(device)
                .put_(torch.tensor([0]).to(device), torch.ones(1).to(device))
            )
        )
    finally:
        torch.use_deterministic_algorithms(False)


@check
def index_out_of_range():
    same_refusal(lambda device: numbers().to(device)[torch.tensor([7]).to(device)])
    same_refusal(lambda device: numbers().to(device).index_select(0, torch.tensor([9]).to(device)))
    same_refusal(lambda device: numbers().to(device).gather(0, torch.full((1, 1), 9).to(device)))
    same_refusal(
        lambda device: torch.nn.functional.embedding(
            torch.tensor([4]).to(device), numbers().to(device)
        )
    )
    same_refusal(lambda device: numbers().to(device)[5])


@check
def devices_do_not_mix():
    a, b, host = numbers(DEVICE), numbers(OTHER_DEVICE), numbers()
    for left, right in ((a, host), (host, a), (a, b), (b, a)):
        for function in (
            torch.add,
            torch.mul,
            torch.equal,
            torch.minimum,
            lambda x, y: torch.cat([x, y]),
            lambda x, y: x.add_(y),
            lambda x, y: torch.mm(x, y.t()),
            lambda x, y: torch.where(x > 1, x, y),
            lambda x, y: x.matmul(y.t()),
            lambda x, y: torch.stack([x, y]),
        ):
            error = refused(functools.partial(function, left, right), RuntimeError)
            expect(
                "Expected all tensors to be on the same device" in str(error)
                or "Cannot compare two tensors on different devices" in str(error),
                f"{left.device}, {right.device}",
                "message",
                str(error),
                "Expected all tensors to be on the same device …",
            )


@check
def host_scalars_are_taken():
    scalar = torch.tensor(2.5)
    for function in (
        torch.add,
        torch.mul,
        torch.pow,
        torch.maximum,
        lambda x, y: y - x,
        lambda x, y: torch.where(x > 3, x, y),
        lambda x, y: x.masked_fill(x > 2, y),
    ):
        same(function(numbers(DEVICE), scalar), function(numbers(), scalar))
    same(
        numbers(DEVICE).index_put((torch.tensor([1, 2]),), scalar),
        numbers().index_put((torch.tensor([1, 2]),), scalar),
    )
    same(numbers(DEVICE)[torch.tensor([1, 2])], numbers()[torch.tensor([1, 2])])
    same(
        numbers(DEVICE)[torch.tensor([True, False, True, True])],
        numbers()[torch.tensor([True, False, True, True])],
    )


@check
def views_and_storages():
    tensor = numbers(DEVICE)
    view = tensor[1:3, ::2]
    expect(
        view._base is tensor and view.untyped_storage()._cdata == tensor.untyped_storage()._cdata,
        "view",
        "base",
        view._base,
        "the tensor",
    )
    expect(torch._C._is_alias_of(view, tensor), "view", "is_alias_of", False, True)
    expect(
        view.data_ptr() == tensor.data_ptr() + 6 * 4,
        "view",
        "data_ptr",
        view.data_ptr() - tensor.data_ptr(),
        24,
    )
    view.add_(100)
    expected = numbers()
    expected[1:3, ::2] += 100
    same(tensor, expected)
    expect(
        tensor.untyped_storage().nbytes() == 96 and tensor.untyped_storage().device == DEVICE,
        "storage",
        "bytes",
        tensor.untyped_storage().nbytes(),
        96,
    )
    same(
        torch.tensor([], device=DEVICE).set_(tensor.untyped_storage(), 2, (3,), (1,)),
        torch.tensor([]).set_(expected.untyped_storage(), 2, (3,), (1,)),
    )


@check
def storage_resizes():
    tensor = numbers(DEVICE)
    tensor.untyped_storage().resize_(8)
    expect(
        tensor.untyped_storage().nbytes() == 8,
        "resize_",
        "bytes",
        tensor.untyped_storage().nbytes(),
        8,
    )
    tensor.untyped_storage().resize_(96)
    same(tensor[0, :2], numbers()[0, :2])
    tensor.data = numbers(DEVICE) * 2
    same(tensor, numbers() * 2)


@check
def default_device():
    with torch.device(DEVICE):
        same(
            torch.ones(3) + torch.arange(3),
            torch.ones(3, device="cpu") + torch.arange(3, device="cpu"),
        )
    before = torch.get_default_device()
    try:
        torch.set_default_device("neuron")
        expect(
            torch.zeros(2).device == DEVICE,
            "set_default_device",
            "device",
            torch.zeros(2).device,
            DEVICE,
        )
    finally:
        torch.set_default_device(before)


@check
def sparse_is_refused_by_name():
    error = refused(lambda: numbers(DEVICE).to_sparse(), NotImplementedError)
    expect(
        "neuron" in str(error) and "strided" in str(error),
        "to_sparse",
        "message",
        str(error),
        "neuron: … only strided tensors …",
    )


@check
def second_derivatives():
    results = []
    for device in ("cpu", DEVICE):
        x = numbers(device, torch.float64).requires_grad_()
        (gradient,) = torch.autograd.grad((x.sin() * x.exp().log1p()).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.pow(2).sum(), x)[0])
    same(results[1], results[0])


@check
def functional_transforms():
    from torch.func import grad, jacrev, vmap

    results = []
    for device in ("cpu", DEVICE):
        x = numbers(device)
        results.append(
            [
                vmap(torch.dot)(x, x),
                grad(lambda y: y.sin().sum())(x),
                jacrev(torch.tanh)(x[0]),
                vmap(lambda row: row.softmax(0))(x),
            ]
        )
    same(results[1], results[0])


@family(
    "services", "moving, saving, printing, copying, refusing, float8, deterministic mode, storages"
)
class Services:
    @staticmethod
    def cases():
        return checks(CHECKS)

    @staticmethod
    def run(subject, dtype):
        CHECKS[subject]()
