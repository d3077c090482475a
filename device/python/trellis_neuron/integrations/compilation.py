"""torch.compile: `backend="neuron"`, which PyTorch's default backend becomes for graphs with a
tensor on the device. The graph that Dynamo and AOT Autograd made runs operation by operation, and
the recorder sees it as it sees eager code: as one program between two reads of values."""

import warnings

import torch

from .. import neuron

BACKENDS, INDUCTOR = "torch._dynamo.backends.registry", "torch._inductor.compile_fx"


def _run(graph, example_inputs):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))(
        graph, example_inputs
    )


def compile_graph(graph, example_inputs, *, mode=None, options=None):
    """`backend="neuron"`. Refuses what TorchNeuron refuses, and options, none of which would have
    an effect."""
    if mode not in (None, "default"):
        raise ValueError(f'torch.compile: backend "neuron": mode: expected "default", got {mode!r}')
    if options:
        raise ValueError(
            f'torch.compile: backend "neuron": options: the emulated device has none, got {options}'
        )
    if not torch._dynamo.config.assume_static_by_default:
        raise ValueError(
            'torch.compile: backend "neuron": dynamic=True: the device\'s compiler takes static '
            "shapes only: leave it out, or pass dynamic=False"
        )
    return _run(graph, example_inputs)


def register_backend(registry) -> None:
    registry.register_backend(compiler_fn=compile_graph, name=neuron.NAME)


def register_default(inductor) -> None:
    compile_fx = inductor.compile_fx

    def compile_fx_or_run(graph, example_inputs, *args, config_patches=None, **kwargs):
        if any(
            isinstance(value, torch.Tensor) and value.device.type == neuron.NAME
            for value in example_inputs
        ):
            if config_patches:
                warnings.warn(
                    "torch.compile: no effect on the device neuron, whose graphs Inductor does not "
                    f"compile: mode or options with {', '.join(config_patches)}",
                    stacklevel=2,
                )
            return _run(graph, example_inputs)
        return compile_fx(graph, example_inputs, *args, config_patches=config_patches, **kwargs)

    inductor.compile_fx = compile_fx_or_run
