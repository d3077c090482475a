"""Accelerate: a custom loop, with mixed precision and clipped gradients."""

import torch
import trellis_neuron
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader, TensorDataset


def train(device: str, mixed_precision: str = "no") -> list[float]:
    AcceleratorState._reset_state(reset_partial_state=True)  # a process may run this twice
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision=mixed_precision)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    inputs = torch.randn(64, 8)
    rows = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
    assert accelerator.device.type == device
    losses = []
    for x, y in rows:
        with accelerator.autocast():
            loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron", "bf16"))
    print(run)
