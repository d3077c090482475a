"""diffusers: a UNet that learns to remove noise."""

import torch
import trellis_neuron
from diffusers import DDPMScheduler, UNet2DModel


def train(device: str) -> list[float]:
    torch.manual_seed(0)
    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noise_schedule = DDPMScheduler(100)
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        images = torch.randn(2, 1, 8, 8, generator=draw).to(device)
        noise = torch.randn(2, 1, 8, 8, generator=draw).to(device)
        times = torch.randint(0, 100, (2,), generator=draw).to(device)
        noisy = noise_schedule.add_noise(images, noise, times)
        loss = torch.nn.functional.mse_loss(model(noisy, times).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
