"""Prints "file/path<tab>sum" of every tensor that torch.load(weights_only=True) reads.

Usage: torch_load.py FOLDER, which holds .pt files at any depth.
"""

import sys
from pathlib import Path

import torch


class TensorReference:
    """Of torch_xla.utils.serialization."""


TensorReference.__module__ = "torch_xla.utils.serialization"
torch.serialization.add_safe_globals(
    [(TensorReference, "torch_xla.utils.serialization.TensorReference")]
)


def walk(path, value):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from walk(f"{path}/{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(f"{path}/{index}", item)


root = Path(sys.argv[1])
for file in sorted(root.rglob("*.pt")):
    content = torch.load(file, weights_only=True)
    for path, tensor in walk(str(file.relative_to(root)), content):
        print(f"{path}\t{tensor.double().sum().item()!r}")
    if file.name == "user_content.pt":
        place = file.relative_to(root).with_suffix("")
        counts = (content[key] for key in ("global_step", "consumed_samples", "optimizer_steps"))
        print(f"{place}\t{' '.join(map(str, counts))}")
