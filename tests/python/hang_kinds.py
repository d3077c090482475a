"""What two ranks do wrong together: each must be an error that names both and their lines, in
threads and in processes. `torchrun --nproc-per-node 2 hang_kinds.py KIND FOLDER` runs one."""

import pathlib
import sys
import time

import torch
import torch.distributed as dist

TIMEOUT_S = 3


def ones(count=4, dtype=torch.float32):
    return torch.ones(count, dtype=dtype, device="neuron")


def all_to_all_splits(rank):
    splits = [[1, 3], [2, 2]][rank]
    dist.all_to_all_single(ones(), ones(), [2, 2], splits)


def reduce_scatter_sizes(rank):
    dist.reduce_scatter_tensor(ones(4 - 2 * rank), ones(8 - 4 * rank))


def receive_ring(rank):
    dist.recv(ones(), 1 - rank)
    dist.send(ones(), 1 - rank)


def on_one_rank_only(rank):
    if rank == 0:
        dist.all_reduce(ones())


def swapped_asynchronous(rank):
    calls = [lambda: dist.all_reduce(ones(), async_op=True)]
    calls += [lambda: dist.all_gather_into_tensor(ones(8), ones(), async_op=True)]
    for work in [call() for call in (calls if rank == 0 else reversed(calls))]:
        work.wait()


def batch_of_other_sizes(rank):
    sends = dist.P2POp(dist.isend, ones(4), 1 - rank)
    takes = dist.P2POp(dist.irecv, ones(4 + 2 * rank), 1 - rank)
    for work in dist.batch_isend_irecv([sends, takes]):
        work.wait()


def other_root(rank):
    dist.broadcast(ones(), src=rank)


def other_reduction(rank):
    dist.all_reduce(ones(), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank])


def other_dtype(rank):
    dist.all_reduce(ones(dtype=[torch.float32, torch.int32][rank]))


def other_operation_in_a_group(rank):
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.all_reduce(ones(), group=group)
    else:
        dist.broadcast(ones(), src=0, group=group)


def groups_in_crossed_order(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank == 0 else reversed(groups):
        dist.all_reduce(ones(), group=group)


def new_group_skipped(rank):
    if rank == 0:
        dist.new_group([0, 1])
    dist.all_reduce(ones())


def new_group_of_one_skipped(rank):
    if rank == 0:
        dist.new_group([0])
    dist.new_group([0, 1])


def new_group_of_one_skipped_at_the_end(rank):
    if rank == 0:
        dist.new_group([0])


def busy_loop(rank):
    began = time.monotonic()
    while rank == 1 and time.monotonic() - began < TIMEOUT_S + 2.5:
        pass
    dist.all_reduce(ones())


AT_ONCE = [
    all_to_all_splits,
    reduce_scatter_sizes,
    receive_ring,
    on_one_rank_only,
    swapped_asynchronous,
    batch_of_other_sizes,
    other_root,
    other_reduction,
    other_dtype,
    other_operation_in_a_group,
    groups_in_crossed_order,
    new_group_skipped,
    new_group_of_one_skipped,
    new_group_of_one_skipped_at_the_end,
]
LATE = [busy_loop]


def early_exit(rank):
    if rank == 1:
        sys.exit(0)
    dist.all_reduce(ones())


def crash(rank):
    import ctypes

    if rank == 1:
        ctypes.string_at(0)
    dist.all_reduce(ones())


def held_lock(rank):
    import ctypes

    if rank == 1:
        ctypes.PyDLL(None).usleep(int((TIMEOUT_S + 4) * 1e6))
    dist.all_reduce(ones())


def frozen(rank):
    import os
    import signal

    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(ones())


ALONE = [early_exit, crash, held_lock, frozen]  # ends or stops a process


def main():
    """One kind, as torchrun's rank: writes how long it took and what was said."""
    import trellis_neuron  # noqa: F401

    kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    from datetime import timedelta

    dist.init_process_group("neuron", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    dist.barrier()
    began = time.monotonic()
    try:
        globals()[kind](rank)
        dist.destroy_process_group()
    except RuntimeError as error:
        took = time.monotonic() - began
        (folder / f"{kind}.{rank}").write_text(f"{took:.2f} s: {error}")
        raise


if __name__ == "__main__":
    main()
