"""Small models of Hugging Face for tests of the program."""

import torch
import transformers


def save_llama(folder):
    """Two layers of width 32 with 264 tokens, whose weights are all far from their start."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=264,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    return folder
