"""Where the shared libraries are. Imports nothing of this package: the wheel's builder uses it
too."""

import os
from pathlib import Path

VARIABLE = "TRELLIS_NEURON_LIBRARY"
DEVICE = "libtrellis_neuron.so"
COLLECTIVES = "libtrellis_c10d.so"
BUNDLED = Path(__file__).resolve().parent / "lib"


def find(name: str = DEVICE) -> Path:
    """$TRELLIS_NEURON_LIBRARY (other libraries: next to it), next to this package, or a build of
    the source tree (release first)."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        path = Path(chosen) if name == DEVICE else Path(chosen).with_name(name)
        if not path.is_file():
            raise ImportError(
                f"trellis_neuron: {VARIABLE}={chosen}: expected a library at {path}, found none"
            )
        return path.resolve()
    builds = Path(__file__).resolve().parents[3] / "build"
    candidates = [
        BUNDLED / name,
        builds / "release" / "lib" / name,
        *sorted(builds.glob(f"*/lib/{name}")),
    ]
    for path in candidates:
        if path.is_file():
            return path
    raise ImportError(
        f"trellis_neuron: {name} not found (looked for {candidates[0]} and {candidates[1]}): "
        "build it with `cmake --build --preset release --target trellis_neuron trellis_c10d`, "
        f"or set {VARIABLE}"
    )
