"""Shape-only mode: what an operator would return, without data."""

import functools

import torch
from case import Skip, family
from compare import alias_pattern, expect
from opinfo import OPERATORS, arguments_of, on_both, samples_of, supported
from transfer import tensors_in

SAMPLES = 30

# Read a number out of a tensor and shape their result by it: shape-only mode's policy answers 1 (or
# true) and says so.
POLICY_VALUES = {
    "narrow": "start",
    "nn.functional.one_hot": "num_classes=-1",
    "nn.functional.gaussian_nll_loss": "checks that var is positive",
}


@functools.cache
def forget_python_shapes():
    """C++ programs do not have the shape functions that PyTorch registers in Python: neuron must do
    without them."""
    torch._meta_registrations._meta_lib_dont_use_me_use_register_meta._destroy()


def layout(tensor):
    return {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "bytes": tensor.untyped_storage().nbytes(),
        "requires_grad": tensor.requires_grad,
    }


def depends_on_data(error):
    return isinstance(error, NotImplementedError) and "depends on data" in str(error)


def same_layouts(got, expected, where):
    got, expected = list(tensors_in(got)), list(tensors_in(expected))
    expect(len(got) == len(expected), where, "tensors", len(got), len(expected))
    for i, (a, b) in enumerate(zip(got, expected)):
        if b.layout != torch.strided:
            raise Skip("a sparse tensor, which neuron does not have")
        have, want = layout(a), layout(b)
        expect(have == want, f"{where}[{i}]", "layout", have, want)


@family(
    "shape_only",
    "without data, results have the sizes, strides, type, bytes and aliasing of the CPU's, or "
    "the operator is refused by name",
)
class ShapeOnly:
    environment = {"TRELLIS_SHAPE_ONLY": "1"}

    @staticmethod
    def cases():
        return (
            (name, dtype)
            for name, op in OPERATORS.items()
            if name not in POLICY_VALUES
            for dtype in supported(op, ("float32",)) or supported(op)[:1]
        )

    @staticmethod
    def run(subject, dtype):
        if not torch.neuron.session_options()["shape_only"]:
            raise RuntimeError(
                "the worker's device has data: TRELLIS_SHAPE_ONLY=1 did not reach it"
            )
        forget_python_shapes()
        op, ran, refused = OPERATORS[subject], 0, None
        for i, sample in enumerate(samples_of(op, dtype, limit=SAMPLES)):
            neuron, cpu = on_both(op.op, *arguments_of(sample), op)
            if cpu.error is not None:
                continue
            if depends_on_data(neuron.error):
                refused = neuron.error
                continue
            if neuron.error is not None:
                raise neuron.error
            same_layouts(neuron.result, cpu.result, f"sample {i}: result")
            same_layouts(neuron.arguments, cpu.arguments, f"sample {i}: arguments afterwards")
            expect(
                alias_pattern(neuron.result, neuron.arguments)
                == alias_pattern(cpu.result, cpu.arguments),
                f"sample {i}",
                "aliasing",
                alias_pattern(neuron.result, neuron.arguments),
                alias_pattern(cpu.result, cpu.arguments),
            )
            ran += 1
        if ran == 0:
            raise Skip(
                str(refused).splitlines()[0] if refused else "no sample that the CPU accepts"
            )
