"""PyTorch: torch.compile with each backend."""

import torch
import trellis_neuron

BACKENDS = ("eager", "aot_eager", "inductor", "neuron")


def train(device: str, backend: str = "neuron") -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    model = layers.to(device)
    compiled = model if device == "cpu" else torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        loss = compiled(torch.randn(4, 8, generator=draw).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
