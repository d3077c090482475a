"""transformers: Trainer, fp32 and bf16."""

import tempfile

import small_llama
import trellis_neuron
from transformers import Trainer, TrainingArguments


def train(device: str, bf16: bool = False) -> list[float]:
    ids = [small_llama.tokenizer()(text)["input_ids"] for text in small_llama.texts()["text"]]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        arguments = small_llama.training_arguments(folder, device)
        trainer = Trainer(
            small_llama.model(), TrainingArguments(**arguments, bf16=bf16), train_dataset=rows
        )
        trainer.train()
    return small_llama.losses_of(trainer)


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
