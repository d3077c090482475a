"""What this package was built for. Runs before anything else is loaded, so it must parse on any
Python 3."""

import sys

PYTHON = (3, 10)
TORCH = "2.13.0"


def check(python=None, torch=None):
    """Raises ImportError that names what was expected and what is there. Arguments replace the real
    ones in tests."""
    python = tuple(sys.version_info[:2]) if python is None else python
    if python < PYTHON:
        raise ImportError(
            "trellis_neuron: expected Python %d.%d or later, got %d.%d: use a newer interpreter"
            % (PYTHON + tuple(python))
        )
    torch = installed_torch() if torch is None else torch
    if torch is None:
        raise ImportError(
            "trellis_neuron: expected torch %s, but torch is not installed: pip install torch==%s"
            % (TORCH, TORCH)
        )
    if torch.split("+")[0] != TORCH:
        raise ImportError(
            "trellis_neuron: expected torch %s, got %s: the library's ABI is that of one "
            "release: pip install torch==%s" % (TORCH, torch, TORCH)
        )


def installed_torch():
    """The version of torch, found without importing it; None when there is none."""
    loaded = sys.modules.get("torch")
    if loaded is not None:
        return str(loaded.__version__)
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
