"""torch.compile: `backend="neuron"`, which PyTorch's default backend becomes for graphs with a
tensor on the device. The graph that Dynamo and AOT Autograd made runs operation by operation, and
the recorder sees it as it sees eager code: as one program between two reads of values."""

import torch

from .. import neuron

BACKENDS, INDUCTOR = "torch._dynamo.backends.registry", "torch._inductor.compile_fx"


def _run(graph, example_inputs, **_):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))(
        graph, example_inputs
    )


def register_backend(registry) -> None:
    registry.register_backend(compiler_fn=_run, name=neuron.NAME)


def register_default(inductor) -> None:
    compile_fx = inductor.compile_fx

    def compile_fx_or_run(graph, example_inputs, *args, **kwargs):
        if any(
            isinstance(value, torch.Tensor) and value.device.type == neuron.NAME
            for value in example_inputs
        ):
            return _run(graph, example_inputs)
        return compile_fx(graph, example_inputs, *args, **kwargs)

    inductor.compile_fx = compile_fx_or_run
