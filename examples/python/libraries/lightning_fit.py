"""Lightning: Trainer(accelerator="neuron")."""

import lightning
import torch
import trellis_neuron
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )
        self.losses, self.places = [], set()

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layers(x), y)
        self.losses.append(loss.item())
        self.places.add(x.device.type)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(device: str) -> list[float]:
    model = Regression()
    inputs = torch.randn(64, 8)
    rows = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
    trainer = lightning.Trainer(
        accelerator=device,
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, rows)
    assert model.places == {device}
    return model.losses


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
