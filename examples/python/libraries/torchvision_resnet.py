"""torchvision: a ResNet-18 that learns to tell classes of images."""

import torch
import torchvision
import trellis_neuron


def train(device: str) -> list[float]:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        images = torch.randn(4, 3, 32, 32, generator=draw).to(device)
        classes = torch.randint(0, 10, (4,), generator=draw).to(device)
        loss = torch.nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
