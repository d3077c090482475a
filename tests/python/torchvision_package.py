"""torchvision's package on PyPI is built for CUDA: next to PyTorch for the CPU its library does not
load, and its Python part, when it is imported, asks for that library's operators by name. Here they
are declared, without kernels: models of classification use none. scripts/setup puts the package
where no other library finds it."""

import importlib.metadata
import importlib.util
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / ".venv/torchvision"
OPERATORS = (
    "nms qnms deform_conv2d _deform_conv2d_backward roi_align _roi_align_backward roi_pool "
    "_roi_pool_backward ps_roi_align _ps_roi_align_backward ps_roi_pool _ps_roi_pool_backward"
)
_declared = []  # a library's operators live as long as it does


def version():
    """None: it is not installed."""
    found = importlib.metadata.distributions(name="torchvision", path=[str(FOLDER), *sys.path])
    return next((each.version.split("+")[0] for each in found), None)


def add():
    """Makes `import torchvision` work."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS.split():
        library.define(f"{name}(Tensor boxes) -> Tensor")
    _declared.append(library)
    sys.path.append(str(FOLDER))
