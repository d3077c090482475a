"""A trace as files: document.json, and an array's bytes in a file of its own."""

import json
from pathlib import Path

import numpy as np

from .dtypes import to_bytes


def write_trace(traced, folder, expected=None, extra=None):
    """`expected`: the reference's arrays, in the order of the outputs."""
    folder = Path(folder)
    document = traced.document() | (extra or {})
    for storage, record in zip(traced.trace.storages, document["tensors"]):
        if storage.data is not None:
            record["file"] = f"tensor{storage.id}.bin"
            (folder / record["file"]).write_bytes(to_bytes(storage.data, storage.dtype))
    document["expected"] = []
    for out, values in zip(traced.outputs, expected or []):
        name = f"expected{out.storage.id}.bin"
        (folder / name).write_bytes(np.ascontiguousarray(values, np.float64).tobytes())
        document["expected"].append(
            {"tensor": out.storage.id, "file": name, "shape": list(np.shape(values))}
        )
    (folder / "document.json").write_text(json.dumps(document))
