"""PEFT's model over transformers' Llama, with the weights of a run."""

import peft
from alignment_case import model_of


def peft_name(name):
    """PEFT's name of an adapter, and whether it is ours transposed."""
    path, part, _ = name.rsplit(".", 2)
    if path.endswith("embed_tokens"):
        letter = part[-1]
        return f"base_model.model.{path}.lora_embedding_{letter}.default", letter == "A"
    return f"base_model.model.{path}.{part}.default.weight", False


def adapted_model_of(weights, **config):
    """Its adapters start as those of the run, of rank 4."""
    adapters = {name: w for name, w in weights.items() if ".lora_" in name}
    base = model_of({name: w for name, w in weights.items() if name not in adapters})
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, **config)
    )
    own = {name: p for name, p in model.named_parameters() if "lora_" in name}
    assert len(own) == len(adapters), (sorted(own), sorted(adapters))
    for name, weight in adapters.items():
        theirs, transposed = peft_name(name)
        own[theirs].data.copy_(weight.t() if transposed else weight)
    return model
