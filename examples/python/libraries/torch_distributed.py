"""PyTorch: DDP, FSDP, fully_shard, tensor parallelism and pipelining on two ranks."""

import torch
import torch.distributed as dist
import trellis_neuron
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

RANKS, BATCH, STEPS = 2, 4, 3
KINDS = ("ddp", "fsdp", "fully_shard", "tensor_parallel", "pipelining")


def layers(device: str) -> torch.nn.Sequential:
    with torch.device(device):  # a rank's own generator: every rank gets the same weights
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


def batch(step: int) -> torch.Tensor:
    return torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))


def on_one_rank() -> list[float]:
    model = layers("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded(kind: str, rank: int) -> tuple[torch.nn.Module, bool]:
    """The model of a rank, and whether each rank has its own part of the batch."""
    model = layers("neuron")
    mesh = init_device_mesh("neuron", (RANKS,))
    if kind == "ddp":
        return DistributedDataParallel(model), True
    if kind == "fsdp":
        return FullyShardedDataParallel(model, device_id=torch.device("neuron", rank)), True
    if kind == "fully_shard":
        return fully_shard(model, mesh=mesh), True
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, mesh, plan), False


def pipeline(rank: int) -> list[float]:
    whole = layers("neuron")
    part = whole[:2] if rank == 0 else whole[2:]
    stage = PipelineStage(part, rank, RANKS, torch.device("neuron", rank))
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda out, _: out.square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    means = []
    for step in range(STEPS):
        inputs, losses = batch(step).to("neuron"), []
        schedule.step(inputs) if rank == 0 else schedule.step(target=inputs, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        means.append(sum(loss.item() for loss in losses) / max(1, len(losses)))
    return means


def rank_program(rank: int, kind: str) -> list[float]:
    dist.init_process_group("neuron")
    if kind == "pipelining":
        return pipeline(rank)
    model, splits = sharded(kind, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs = batch(step).chunk(RANKS)[rank] if splits else batch(step)
        loss = model(inputs.to("neuron")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(device: str, kind: str = "fully_shard") -> list[float]:
    if device == "cpu":
        return on_one_rank()
    of_ranks = trellis_neuron.run_ranks(rank_program, RANKS, kind)
    if kind == "pipelining":
        return of_ranks[-1]
    return [sum(losses) / RANKS for losses in zip(*of_ranks)]


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
