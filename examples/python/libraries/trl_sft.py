"""TRL: SFTTrainer."""

import tempfile

import small_llama
import trellis_neuron
from trl import SFTConfig, SFTTrainer


def train(device: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = small_llama.training_arguments(folder, device)
        trainer = SFTTrainer(
            small_llama.model(),
            args=SFTConfig(**arguments, max_length=32, bf16=False),
            train_dataset=small_llama.texts(),
            processing_class=small_llama.tokenizer(),
        )
        trainer.train()
    return small_llama.losses_of(trainer)


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
