"""What megatron-core reads from a folder of DistCheckpoint (distributed_test.cpp). Argument: the
folder. Prints `name<tab>numbers`."""

import contextlib
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")


def main(folder):
    with contextlib.redirect_stdout(sys.stderr):
        dist.init_process_group(
            "gloo", rank=0, world_size=1, init_method="file://" + tempfile.mktemp()
        )
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

        state = {
            "grid": ShardedTensor.from_rank_offsets("grid", torch.zeros(8, 16), (0, 0, 1)),
            "layers": [
                ShardedTensor.from_rank_offsets(
                    "layers.b", torch.zeros(4), (0, layer, 2), prepend_axis_num=1
                )
                for layer in range(2)
            ],
            "gate": ShardedTensor.from_rank_offsets("gate", torch.zeros(6, 2), (0, 0, 1)),
            "rng": ShardedObject("rng", None, (2,), (1,)),
            "rng0": ShardedObject("rng", None, (2,), (0,)),
        }
        got = dist_checkpointing.load(state, folder)
    got["layer"] = got["layers"][1]
    for name in ("grid", "layer", "gate"):
        print(name, " ".join(map(str, got[name].flatten().tolist())), sep="\t")
    print("rng", got["rng"]["seed"], sep="\t")
    print("step", got["step"], sep="\t")


if __name__ == "__main__":
    main(sys.argv[1])
