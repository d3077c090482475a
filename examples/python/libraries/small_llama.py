"""What the examples of this folder share: a Llama and a tokenizer that need no network."""

import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
WORDS = [f"w{i}" for i in range(60)]


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(SPECIAL) + len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            pad_token_id=1,
            bos_token_id=2,
            eos_token_id=3,
            attn_implementation="eager",  # the CPU's fused one adds in another order
        )
    )


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    text = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    text.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=text,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
    )


def sentence(seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(10))


def sentences(column: str, count: int = 8, first: int = 0) -> dict[str, list[str]]:
    return {column: [sentence(first + i) for i in range(count)]}


def texts() -> Dataset:
    return Dataset.from_dict(sentences("text"))


def preferences() -> Dataset:
    return Dataset.from_dict(
        {
            **sentences("prompt"),
            **sentences("chosen", first=100),
            **sentences("rejected", first=200),
        }
    )


def losses_of(trainer) -> list[float]:
    """Of a transformers.Trainer, step by step."""
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def training_arguments(folder: str, device: str) -> dict:
    return {
        "output_dir": folder,
        "max_steps": 3,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
    }
