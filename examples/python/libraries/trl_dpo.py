"""TRL: DPOTrainer."""

import tempfile

import small_llama
import trellis_neuron
from trl import DPOConfig, DPOTrainer


def train(device: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = small_llama.training_arguments(folder, device)
        trainer = DPOTrainer(
            small_llama.model(),
            ref_model=small_llama.model(),
            args=DPOConfig(**arguments, max_length=64, bf16=False),
            train_dataset=small_llama.preferences(),
            processing_class=small_llama.tokenizer(),
        )
        trainer.train()
    return small_llama.losses_of(trainer)


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
