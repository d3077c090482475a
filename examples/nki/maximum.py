"""The largest value so far, block by block: the loop says that its iterations are independent."""

import neuronxcc.nki.language as nl
import numpy as np
from neuronxcc import nki


@nki.jit
def running_maximum(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    so_far = nl.full((128, 1), -1e30, dtype=nl.float32)
    for i in nl.affine_range(x.shape[1] // 64):
        tile = nl.load(x[:, nl.ds(i * 64, 64)])
        largest = nl.maximum(nl.max(tile, axis=1), so_far)
        nl.store(out[:, nl.ds(i * 64, 64)], value=nl.maximum(tile, largest))
        so_far[...] = nl.copy(largest)
    return out


def inputs(seed):
    return [np.random.default_rng(seed).standard_normal((128, 256)).astype(np.float32)]
