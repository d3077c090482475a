#!/usr/bin/env python3
"""An all-reduce of 1 MiB between two processes, which compare what they are about to do, next to
Gloo's of the same tensors, which compares nothing. Alternating, in one pair of processes.

Usage: process_all_reduce.py [ROUNDS]. Exit code 1 when the least or the median time is more than
1.1 times Gloo's.
"""

import os
import pathlib
import socket
import statistics
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MOST = 1.1
BYTES = 1 << 20
CALLS = 20  # in a round


def measure(rank, port, rounds):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TRELLIS_RECORD="0",
    )
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(SOURCE / "device/python"))
    import trellis_neuron  # noqa: F401

    dist.init_process_group("neuron")
    gloo = dist.new_group(backend="gloo")
    ours, theirs = torch.ones(BYTES // 4, device="neuron"), torch.ones(BYTES // 4)
    times = {"compared": [], "gloo": []}
    for _ in range(rounds):
        for name, tensor, group in (("compared", ours, None), ("gloo", theirs, gloo)):
            dist.barrier(group=gloo)
            began = time.perf_counter()
            for _ in range(CALLS):
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
            times[name].append((time.perf_counter() - began) / CALLS * 1e6)
    dist.barrier(group=gloo)
    if rank == 0:
        least = {name: min(each) for name, each in times.items()}
        middle = {name: statistics.median(each) for name, each in times.items()}
        ratios = [each["compared"] / each["gloo"] for each in (least, middle)]
        print(
            f"least [us]: {least}, {ratios[0]:.2f} times; median: {middle}, {ratios[1]:.2f} times"
        )
        sys.exit(int(max(ratios) > MOST))


def main():
    import torch.multiprocessing as processes

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes.start_processes(measure, (port, rounds), nprocs=2, start_method="spawn")


if __name__ == "__main__":
    main()
