"""The process that traces a kernel for `trellis kernel run`: no LibTorch, unless the kernel's file
imports it."""

import argparse
import importlib
import importlib.util
import inspect
import math
import resource
import sys
import traceback
import types
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def _package():
    """This package without the one around it, which loads LibTorch."""
    around = types.ModuleType("trellis_neuron")
    around.__path__ = [str(FOLDER.parent)]
    sys.modules["trellis_neuron"] = around
    package = importlib.import_module("trellis_neuron.nki")
    importlib.import_module("trellis_neuron.nki.names").register()
    return package


def _load(file, name):
    path = Path(file).resolve()
    if not path.is_file():
        raise SystemExit(f"{file}: there is no such file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _kernel(module, file, name, kinds):
    found = {k: v for k, v in vars(module).items() if isinstance(v, kinds)}
    if name:
        chosen = getattr(module, name, None)
        if callable(chosen):
            return chosen
        raise SystemExit(f"{file}: --kernel {name}: it has {', '.join(found) or 'no @nki.jit'}")
    if len(found) != 1:
        raise SystemExit(
            f"{file}: {len(found)} functions with @nki.jit ({', '.join(found)}): --kernel NAME "
            "says which"
        )
    return next(iter(found.values()))


def _made(text, nki, seed):
    """`name=128x512:bf16`: normal numbers."""
    import numpy as np

    name, _, rest = text.partition("=")
    shape, _, dtype = rest.partition(":")
    try:
        sizes = [int(n) for n in shape.replace(",", "x").split("x")]
        found = importlib.import_module("trellis_neuron.nki.dtypes").find(dtype or "fp32")
    except (ValueError, nki.KernelError) as error:
        raise SystemExit(f"--input {text}: expected name=128x512:bf16: {error}") from None
    values = np.random.default_rng([seed, *name.encode()]).standard_normal(sizes)
    return name, values.astype(np.float32), found


def _of_reference(reference, seed):
    inputs = reference.inputs(seed) if inspect.signature(reference.inputs).parameters else (
        reference.inputs()
    )  # fmt: skip
    return dict(inputs) if isinstance(inputs, dict) else list(inputs)


def _inputs(options, nki, reference):
    """(positional, by name, dtypes by name)"""
    made = [_made(text, nki, options.seed) for text in options.input]
    if made:
        return [], {n: v for n, v, _ in made}, {n: d for n, _, d in made}
    if reference is None or not hasattr(reference, "inputs"):
        raise SystemExit(
            "the kernel's inputs: --ref FILE with inputs(seed), or --input name=128x512:bf16 for "
            "each"
        )
    values = _of_reference(reference, options.seed)
    names = getattr(reference, "dtypes", {})
    find = importlib.import_module("trellis_neuron.nki.dtypes").find
    dtypes = {name: find(word) for name, word in names.items()}
    return ([], values, dtypes) if isinstance(values, dict) else (values, {}, dtypes)


def _expected(reference, args, kwargs):
    import numpy as np

    if reference is None or not hasattr(reference, "reference"):
        return []
    result = reference.reference(*args, **kwargs)
    results = result if isinstance(result, (tuple, list)) else [result]
    as_array = importlib.import_module("trellis_neuron.nki.kernel").as_array
    return [np.asarray((as_array(r) or (r,))[0], np.float64) for r in results]


def _options():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("out")
    parser.add_argument("--ref", default="")
    parser.add_argument("--kernel", default="")
    parser.add_argument("--input", action="append", default=[])
    parser.add_argument("--grid", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-values", action="store_true")
    parser.add_argument("--seconds", type=int, default=120)
    return parser.parse_args()


def _trace(options, nki):
    module = _load(options.file, "nki_kernel_file")
    kernel = _kernel(module, options.file, options.kernel, nki.Kernel)
    reference = module if hasattr(module, "inputs") else None
    if options.ref:
        reference = _load(options.ref, "nki_reference_file")
    args, kwargs, dtypes = _inputs(options, nki, reference)
    if isinstance(kernel, nki.Kernel) and options.grid:
        kernel = kernel[tuple(int(n) for n in options.grid.split(","))]
    capture = importlib.import_module("trellis_neuron.nki.kernel").Capture(dtypes)
    with capture:
        kernel(*args, **kwargs)
    if len(capture.traces) != 1:
        raise SystemExit(f"{options.file}: {len(capture.traces)} kernels were called, expected one")
    traced = capture.traces[0]
    expected = []
    if options.no_values:
        for storage in traced.trace.storages:
            storage.data = None
    else:
        expected = _expected(reference, args, kwargs)
    if expected and len(expected) != len(traced.outputs):
        raise SystemExit(
            f"{options.ref or options.file}: the reference gives {len(expected)} results, the "
            f"kernel {len(traced.outputs)}: each needs one"
        )
    for out, values in zip(traced.outputs, expected):
        if values.size != math.prod(out.shape):
            raise SystemExit(
                f"{options.ref or options.file}: the reference has {list(values.shape)}, "
                f"the kernel gives {list(out.shape)}"
            )
    importlib.import_module("trellis_neuron.nki.files").write_trace(traced, options.out, expected)


def main() -> int:
    options = _options()
    resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds + 1))
    nki = _package()
    try:
        _trace(options, nki)
    except nki.KernelError as error:
        print(error, file=sys.stderr)
        return 2
    except SystemExit as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((f for f in reversed(frames) if FOLDER.name not in f.filename), frames[-1])
        print(
            f"{Path(frame.filename).name}:{frame.lineno}: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
