"""Hugging Face architectures: a training step on neuron gives the CPU's loss and gradients, bit for
bit. Random weights from small configurations."""

import math
import unittest

import torch
import transformers
import trellis_neuron

torch.set_num_threads(1)
VOCABULARY, BATCH, SEQUENCE = 64, 2, 12
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**WIDE, "intermediate_size": 48, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
BERT = {**WIDE, "intermediate_size": 48, "vocab_size": VOCABULARY, "max_position_embeddings": 32}
NO_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts_per_tok": 2}

CAUSAL = {
    "Llama": LLAMA,
    "Mistral": {**LLAMA, "sliding_window": 6},
    "Mixtral": {**LLAMA, "num_local_experts": 4, **EXPERTS},
    "Qwen2": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 8},
    "Qwen3Moe": {
        **LLAMA,
        "head_dim": 8,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        **EXPERTS,
    },
    "Gemma": {**LLAMA, "head_dim": 8},
    "Gemma2": {**LLAMA, "head_dim": 8, "sliding_window": 6},
    "Phi": LLAMA,
    "Phi3": {**LLAMA, **NO_TOKENS},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": VOCABULARY},
    "GPTNeoX": {**WIDE, "intermediate_size": 48, "vocab_size": VOCABULARY},
    "OPT": {
        **WIDE,
        "ffn_dim": 48,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32,
        "word_embed_proj_dim": 32,
        **NO_TOKENS,
    },
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
    "Falcon": {**WIDE, "vocab_size": VOCABULARY},
    "StableLm": LLAMA,
    "Olmo": LLAMA,
    "Granite": LLAMA,
}
MASKED = {
    "Bert": BERT,
    "Roberta": {**BERT, **NO_TOKENS},
    "DistilBert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32,
    },
    "Electra": {**BERT, "embedding_size": 32},
}


def tokens():
    return torch.randint(
        3, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(1)
    )


def step(make, inputs, device, attention="eager", backend=None):
    """Losses of two steps, and gradients of the second. attention: "eager" for equal bits, because
    the CPU's fused one adds in another order; backend: of torch.compile."""
    torch.manual_seed(0)
    model = make().to(device).train()
    model.set_attn_implementation(attention)
    if backend is not None:
        model.compile(backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    moved = {key: value.to(device) for key, value in inputs.items()}
    losses = []
    for _ in range(2):
        torch.manual_seed(2)  # dropout
        optimizer.zero_grad()
        loss = model(**moved).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return losses, gradients


class Architectures(unittest.TestCase):
    def compare(self, make, **inputs):
        cpu, cpu_gradients = step(make, inputs, "cpu")
        neuron, gradients = step(make, inputs, "neuron")
        self.assertTrue(all(map(math.isfinite, cpu)))
        self.assertEqual(neuron, cpu)
        self.assertEqual(gradients.keys(), cpu_gradients.keys())
        for name, gradient in gradients.items():
            self.assertTrue(torch.equal(gradient, cpu_gradients[name]), name)

    def test_mixtures_have_simulated_time(self):
        for name in ("Mixtral", "Qwen3Moe"):
            config = getattr(transformers, f"{name}Config")(**CAUSAL[name])
            ids = tokens()
            with self.subTest(name), trellis_neuron.simulate(tokens_per_step=ids.numel()) as run:
                losses, _ = step(
                    lambda: getattr(transformers, f"{name}ForCausalLM")(config),  # noqa: B023
                    {"input_ids": ids, "labels": ids},
                    "neuron",
                )
                self.assertLess(losses[1], losses[0])
            steps = run.as_dict()["steps"]
            self.assertEqual(len(steps), 2)
            self.assertGreater(steps[1]["step_time_ps"], 0)
            self.assertGreater(run.report().breakdown_ms()[1]["matmul"], 0)

    def test_t5(self):
        config = transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
        make = lambda: transformers.T5ForConditionalGeneration(config)  # noqa: E731
        self.compare(make, input_ids=tokens(), labels=tokens())

    def test_whisper(self):
        config = transformers.WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=32,
            decoder_start_token_id=1,
            **NO_TOKENS,
        )
        make = lambda: transformers.WhisperForConditionalGeneration(config)  # noqa: E731
        draw = torch.Generator().manual_seed(3)
        sound = torch.randn(BATCH, 8, 32, generator=draw)
        self.compare(make, input_features=sound, labels=tokens())

    def test_wav2vec2(self):
        config = transformers.Wav2Vec2Config(
            **WIDE,
            vocab_size=VOCABULARY,
            intermediate_size=48,
            conv_dim=(8, 8),
            conv_kernel=(10, 3),
            conv_stride=(5, 2),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            mask_time_prob=0.0,
            layerdrop=0.0,  # drawn from the CPU's generator, which its dropout shares there
            ctc_loss_reduction="mean",
        )
        make = lambda: transformers.Wav2Vec2ForCTC(config)  # noqa: E731
        draw = torch.Generator().manual_seed(3)
        sound = torch.randn(BATCH, 400, generator=draw)
        self.compare(make, input_values=sound, labels=tokens()[:, :4])


def causal(name, settings, kind):
    def run(self):
        config = getattr(transformers, name + "Config")(**settings)
        ids = tokens()
        self.compare(lambda: getattr(transformers, name + kind)(config), input_ids=ids, labels=ids)

    return run


for table, kind in ((CAUSAL, "ForCausalLM"), (MASKED, "ForMaskedLM")):
    for name, settings in table.items():
        of_kind = "LMHeadModel" if name == "GPT2" else kind
        setattr(Architectures, f"test_{name.lower()}", causal(name, settings, of_kind))


if __name__ == "__main__":
    unittest.main()
