"""PEFT: LoRA, trained by transformers' Trainer."""

import tempfile

import small_llama
import torch
import trellis_neuron
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments


def train(device: str) -> list[float]:
    model = small_llama.model()
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(model, config)
    ids = [small_llama.tokenizer()(text)["input_ids"] for text in small_llama.texts()["text"]]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        arguments = small_llama.training_arguments(folder, device)
        trainer = Trainer(model, TrainingArguments(**arguments), train_dataset=rows)
        trainer.train()
    return small_llama.losses_of(trainer)


if __name__ == "__main__":
    with trellis_neuron.simulate("trn2.48xlarge") as run:
        print(train("neuron"))
    print(run)
