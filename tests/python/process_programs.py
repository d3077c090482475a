"""Random programs of collectives and messages in processes: every number is that of the oracle, and
nothing is taken for a hang. `python process_programs.py 1000` runs the whole set in 2 and 3
processes."""

import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.float64)
TIMEOUT_S = 5


def value(rank, step):
    """Small whole numbers: sums of them are exact in every type."""
    return (rank + 1) * (step % 5 + 1)


class Program:
    """One rank's way through a program; its plan is the same on all ranks, its delays are not."""

    def __init__(self, seed, rank, size, groups):
        self.plan, self.delays = random.Random(seed), random.Random(seed * 1000 + rank)
        self.rank, self.size, self.groups = rank, size, groups
        self.open = []  # (work, tensor, expected)

    def run(self):
        for step in range(self.plan.randint(4, 12)):
            if self.delays.random() < 0.2:
                time.sleep(self.delays.random() * 0.01)
            self.call(step)
            if self.delays.random() < 0.3:
                self.finish()
        self.finish()

    def finish(self):
        for work, tensor, expected in self.open:
            if work is not None:
                work.wait()
            assert (tensor == expected).all(), (tensor, expected)
        self.open.clear()

    def call(self, step):
        plan = self.plan
        members, group = plan.choice(self.groups)
        dtype, count = plan.choice(DTYPES), plan.choice((1, 7, 300, 40_000))
        kind = plan.choice(
            ("reduce", "max", "gather", "scatter", "swap", "root", "message", "meet")
        )
        root, two = plan.choice(members), plan.sample(range(self.size), 2)
        if kind == "message":
            return self.message(step, two, count, dtype)
        if self.rank not in members:
            return
        mine = torch.full((count,), value(self.rank, step), dtype=dtype, device="neuron")
        run = {"group": group, "async_op": True}
        values = [value(rank, step) for rank in members]
        whole = torch.empty(count * len(members), dtype=dtype, device="neuron")
        spread = torch.tensor(values, dtype=dtype).repeat_interleave(count).to("neuron")
        if kind == "reduce":
            self.expect(dist.all_reduce(mine, **run), mine, sum(values))
        elif kind == "max":
            self.expect(dist.all_reduce(mine, op=dist.ReduceOp.MAX, **run), mine, max(values))
        elif kind == "gather":
            self.expect(dist.all_gather_into_tensor(whole, mine, **run), whole, spread)
        elif kind == "scatter":
            self.expect(dist.reduce_scatter_tensor(mine, spread, **run), mine, None)
            place = members.index(self.rank)
            self.open[-1] = (*self.open[-1][:2], values[place] * len(members))
        elif kind == "swap":
            parts = torch.full_like(whole, value(self.rank, step))
            self.expect(dist.all_to_all_single(whole, parts, **run), whole, spread)
        elif kind == "root":
            self.expect(dist.broadcast(mine, src=root, **run), mine, value(root, step))
        else:
            dist.barrier(group=group)

    def expect(self, work, tensor, expected):
        self.open.append((work, tensor, expected))

    def message(self, step, two, count, dtype):
        sender, receiver = two
        tensor = torch.full((count,), value(self.rank, step), dtype=dtype, device="neuron")
        if self.rank == sender:
            self.expect(dist.isend(tensor, receiver), tensor, value(sender, step))
        elif self.rank == receiver:
            self.expect(dist.irecv(tensor, sender), tensor, value(sender, step))


def play(rank, size, seeds):
    """Groups are made once; the programs follow each other without a pause."""
    ranks = list(range(size))
    some = [ranks, ranks[:2], ranks[::2]] if size > 2 else [ranks]
    groups = [(ranks, None), *((members, dist.new_group(members)) for members in some)]
    groups = [each for each in groups if len(each[0]) > 1]
    for seed in seeds:
        Program(seed, rank, size, groups).run()
    dist.destroy_process_group()


def process(rank, size, port, first, count):
    import os

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import trellis_neuron  # noqa: F401

    dist.init_process_group("neuron", timeout=timedelta(seconds=TIMEOUT_S))
    play(rank, size, range(first, first + count))


def main(count):
    import socket

    import torch.multiprocessing as processes

    for size in (2, 3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes.start_processes(
            process, (size, port, size * 10**6, count // 2), nprocs=size, start_method="spawn"
        )
    print(f"{count} programs")


if __name__ == "__main__":
    main(int(sys.argv[1]))
