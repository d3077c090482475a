"""The models against Hugging Face transformers, in fp32: the same weights give the same logits,
loss and gradients, and eight steps of AdamW (twenty in scripts/judge) the same losses. Weights are
random numbers; norms and biases too, so that each of them matters."""

import unittest

import torch
import transformers
from torch.nn import functional
from transformers_case import (
    BATCH,
    IGNORED,
    LAYERS,
    LLAMA,
    LLAMA3_ROPE,
    OURS,
    SEQUENCE,
    VOCABULARY,
    Comparison,
    llama_weights,
    mean_loss,
    randomize,
    run,
    tokens,
    values,
)


class Llama(Comparison):
    def model(self, **changes):
        return randomize(
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **changes}))
        )

    def test_llama_2(self):
        self.check_forward(self.model(), OURS, llama_weights)

    def test_plain_attention(self):
        self.check_forward(self.model(), dict(OURS, flash_attention=0), llama_weights)

    def test_llama_3_1_scaling(self):
        config = dict(
            OURS,
            rope_theta=500000.0,
            rope_type="llama3",
            rope_factor=8.0,
            rope_low_freq_factor=1.0,
            rope_high_freq_factor=4.0,
            rope_original=16,
        )
        self.check_forward(self.model(rope_parameters=LLAMA3_ROPE), config, llama_weights)

    def test_linear_scaling(self):
        model = self.model(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5))
        self.check_forward(model, dict(OURS, rope_type="linear", rope_factor=2.5), llama_weights)

    def test_dynamic_scaling(self):
        model = self.model(
            rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0),
            max_position_embeddings=16,
        )
        self.check_forward(
            model, dict(OURS, rope_type="dynamic", rope_factor=2.0, rope_original=16), llama_weights
        )

    def test_separate_head_size(self):
        self.check_forward(self.model(head_dim=20), dict(OURS, head_dim=20), llama_weights)

    def test_mask_of_the_loss(self):
        """Labels of −100 and weights of the loss mask; the mean is over what counts."""
        batches = tokens()
        batches["labels"][0, 0, :11] = IGNORED
        batches["loss_mask"] = torch.rand(
            batches["labels"].shape, generator=torch.Generator().manual_seed(3)
        )
        self.check_forward(self.model(), OURS, llama_weights, batches)

    def test_nothing_counts(self):
        batches = tokens()
        batches["labels"][:] = IGNORED
        got = run(OURS, llama_weights(values(self.model())), batches)
        self.assertEqual(got["losses"].item(), 0)
        self.assertTrue(all((gradient == 0).all() for gradient in got["grads"].values()))

    def test_padding_on_the_left(self):
        model, batches = self.model(), tokens()
        mask = torch.ones(BATCH, SEQUENCE, dtype=torch.long)
        mask[1, :9] = 0
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        expected = model(
            batches["input_ids"][0], attention_mask=mask, position_ids=positions
        ).logits
        got = run(
            OURS,
            llama_weights(values(model)),
            dict(batches, attention_mask=mask[None], position_ids=positions[None]),
        )
        self.close(
            got["logits"].transpose(0, 1)[mask == 1],
            expected[mask == 1].detach(),
            "logits of real tokens",
        )

    def test_packed_documents_are_as_if_alone(self):
        model, batches, cut = self.model(), tokens(), 13
        mask = torch.ones(1, BATCH, SEQUENCE, dtype=torch.long)
        mask[..., cut:] = 2
        positions = (
            torch.cat([torch.arange(cut), torch.arange(SEQUENCE - cut)])
            .expand(1, BATCH, -1)
            .contiguous()
        )
        ids = batches["input_ids"][0]
        alone = torch.cat([model(ids[:, :cut]).logits, model(ids[:, cut:]).logits], 1)
        for flash in (0, 1):
            got = run(
                dict(OURS, flash_attention=flash),
                llama_weights(values(model)),
                dict(batches, attention_mask=mask, position_ids=positions),
            )
            self.close(
                got["logits"].transpose(0, 1), alone.detach(), f"logits, flash_attention {flash}"
            )

    def test_training(self):
        self.check_training(self.model(), OURS, llama_weights)

    def test_training_llama_3_1(self):
        config = dict(
            OURS,
            rope_theta=500000.0,
            rope_type="llama3",
            rope_factor=8.0,
            rope_low_freq_factor=1.0,
            rope_high_freq_factor=4.0,
            rope_original=16,
        )
        self.check_training(self.model(rope_parameters=LLAMA3_ROPE), config, llama_weights)


class Mistral(Comparison):
    def model(self, **changes):
        config = transformers.MistralConfig(
            **{**LLAMA, "head_dim": 8, "sliding_window": 7, **changes}
        )
        return randomize(transformers.MistralForCausalLM(config))

    def test_window(self):
        for flash in (0, 1):
            self.check_forward(
                self.model(), dict(OURS, sliding_window=7, flash_attention=flash), llama_weights
            )

    def test_the_window_matters(self):
        """The comparison above could not fail if the window changed nothing."""
        batches, weights = tokens(), llama_weights(values(self.model()))
        difference = (
            run(dict(OURS, sliding_window=7), weights, batches)["logits"]
            - run(OURS, weights, batches)["logits"]
        )
        self.assertGreater(difference.abs().max().item(), 0.1)

    def test_training(self):
        self.check_training(self.model(), dict(OURS, sliding_window=7), llama_weights)


class Qwen3(Comparison):
    """Heads of a separate size; each query and key head normalised before RoPE."""

    CONFIG = dict(OURS, head_dim=20, qk_layernorm=1)

    def model(self):
        config = transformers.Qwen3Config(**{**LLAMA, "head_dim": 20})
        return randomize(transformers.Qwen3ForCausalLM(config))

    def test_qwen3(self):
        for flash in (0, 1):
            self.check_forward(
                self.model(), dict(self.CONFIG, flash_attention=flash), llama_weights
            )

    def test_training(self):
        self.check_training(self.model(), self.CONFIG, llama_weights)


class Qwen2(Comparison):
    """Biases of queries, keys and values alone; small ones have a tied head."""

    CONFIG = dict(OURS, qkv_bias=1)

    def model(self, **changes):
        return randomize(
            transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**LLAMA, **changes}))
        )

    def test_qwen2(self):
        for flash in (0, 1):
            self.check_forward(
                self.model(), dict(self.CONFIG, flash_attention=flash), llama_weights
            )

    def test_training_of_a_tied_head(self):
        self.check_training(
            self.model(tie_word_embeddings=True),
            dict(self.CONFIG, share_embeddings_and_output_weights=1),
            llama_weights,
        )


class Olmo2(Comparison):
    """Norms behind attention and MLP, and across the heads of queries and of keys."""

    CONFIG = dict(OURS, qk_layernorm=1, qk_layernorm_across_heads=1, transformer_block_type=4)

    def model(self):
        # Without a token that pads, whose row of the embedding transformers does not train.
        config = transformers.Olmo2Config(**LLAMA, pad_token_id=None, eos_token_id=None)
        return randomize(transformers.Olmo2ForCausalLM(config))

    def test_olmo2(self):
        for flash in (0, 1):
            self.check_forward(
                self.model(), dict(self.CONFIG, flash_attention=flash), llama_weights
            )

    def test_training(self):
        self.check_training(self.model(), self.CONFIG, llama_weights)


def gpt2_weights(tensors, heads=6):
    """Names of Hugging Face to Megatron's. Conv1D holds its matrix transposed; q|k|v of the whole
    become q|k|v of each head."""

    def per_head(tensor):
        return tensor.reshape(3, heads, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)

    places = {
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.c_attn": "self_attention.query_key_value",
        "attn.c_proj": "self_attention.dense",
        "mlp.c_fc": "mlp.dense_h_to_4h",
        "mlp.c_proj": "mlp.dense_4h_to_h",
    }
    weights = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        if parts[1] == "h":
            module, kind = ".".join(parts[3:-1]), parts[-1]
            value = tensor.t().contiguous() if "c_" in module and kind == "weight" else tensor
            path = f"language_model.encoder.layers.{parts[2]}.{places[module]}"
            weights[f"{path}.{kind}"] = per_head(value) if module == "attn.c_attn" else value
        else:
            places_of_ends = {
                "wte": "embedding.word_embeddings",
                "wpe": "embedding.position_embeddings",
                "ln_f": "encoder.final_layernorm",
            }
            weights[f"language_model.{places_of_ends[parts[1]]}.{parts[-1]}"] = tensor
    return weights


class Gpt2(Comparison):
    """Learned positions, LayerNorm, biases, the tanh gelu, tied weights."""

    CONFIG = dict(
        {
            key: OURS[key]
            for key in (
                "num_layers",
                "hidden_size",
                "num_attention_heads",
                "encoder_seq_length",
                "vocab_size",
                "layernorm_epsilon",
            )
        },
        architecture="gpt",
        num_kv_heads=6,
        ffn_hidden_size=192,
        max_position_embeddings=40,
        normalization=0,
        activation=1,
        position_embedding=1,
        has_bias=1,
        share_embeddings_and_output_weights=1,
    )

    def model(self):
        return randomize(
            transformers.GPT2LMHeadModel(
                transformers.GPT2Config(
                    vocab_size=VOCABULARY,
                    n_positions=40,
                    n_embd=48,
                    n_layer=LAYERS,
                    n_head=6,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                )
            )
        )

    def test_gpt_2(self):
        self.check_forward(self.model(), self.CONFIG, gpt2_weights)

    def test_plain_attention_with_layer_scaling(self):
        self.check_forward(
            self.model(),
            dict(self.CONFIG, flash_attention=0, apply_query_key_layer_scaling=1),
            gpt2_weights,
        )

    def test_position_ids(self):
        model, batches = self.model(), tokens()
        positions = torch.randint(
            0, SEQUENCE, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(1)
        )
        expected = model(
            batches["input_ids"][0],
            position_ids=positions,
            attention_mask=torch.ones(BATCH, SEQUENCE),
        ).logits
        got = run(
            self.CONFIG, gpt2_weights(values(model)), dict(batches, position_ids=positions[None])
        )
        self.close(got["logits"].transpose(0, 1), expected.detach(), "logits")

    def test_training(self):
        self.check_training(self.model(), self.CONFIG, gpt2_weights)


class Lora(Comparison):
    """Adapters on all projections, in fp64, against the dense model of W + alpha/rank · B·A."""

    RANK, SCALE = 3, 2.0
    PLACES = {
        "self_attn.q_proj": (48, 48),
        "self_attn.k_proj": (16, 48),
        "self_attn.v_proj": (16, 48),
        "self_attn.o_proj": (48, 48),
        "mlp.gate_up_proj": (160, 48),
        "mlp.down_proj": (48, 80),
    }

    def setup_weights(self):
        model = randomize(
            transformers.LlamaForCausalLM(
                transformers.LlamaConfig(**LLAMA, attn_implementation="eager")
            )
        ).double()
        base = llama_weights(values(model))
        generator = torch.Generator().manual_seed(6)
        adapters = {}
        for layer in range(LAYERS):
            for place, (rows, columns) in self.PLACES.items():
                for name, shape in (("A", (self.RANK, columns)), ("B", (rows, self.RANK))):
                    adapters[f"model.layers.{layer}.{place}.lora_{name}.weight"] = (
                        0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
                    )
        return model, base, adapters

    def merge(self, model, adapters):
        """Puts W + scale · B·A into the dense model; returns the merged weights by our names, as
        leaves of a graph that reaches the adapters."""
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in adapters.items()}
        merged = {}
        for name, weight in llama_weights(values(model)).items():
            path = name.removesuffix(".weight")
            a, b = leaves.get(f"{path}.lora_A.weight"), leaves.get(f"{path}.lora_B.weight")
            merged[name] = weight if a is None else weight + self.SCALE * b @ a
        hub = {}
        for name in dict(model.named_parameters()):
            if "gate_proj" in name or "up_proj" in name:
                half = merged[
                    name.replace("gate_proj", "gate_up_proj").replace(".up_proj", ".gate_up_proj")
                ].chunk(2)
                hub[name] = half[0] if "gate_proj" in name else half[1]
            else:
                hub[name] = merged[name]
        return leaves, hub

    def check_gradients(self, loss_of, config, batches):
        model, base, adapters = self.setup_weights()
        leaves, hub = self.merge(model, adapters)
        logits = torch.func.functional_call(model, hub, (batches["input_ids"][0],)).logits
        loss = loss_of(logits)
        loss.backward()
        for recompute in (0, 2):
            got = run(
                dict(OURS, lora_rank=self.RANK, recompute=recompute, **config),
                {**base, **adapters},
                batches,
            )
            self.assertEqual(set(got["grads"]), set(adapters), "only adapters have gradients")
            # Hugging Face's norms and positions stay fp32 in an fp64 model.
            self.close(got["losses"][0], loss.detach(), "loss")
            self.close(got["logits"].transpose(0, 1), logits.detach(), "logits")
            worst = max(
                ((got["grads"][n] - leaf.grad).norm() / leaf.grad.norm()).item()
                for n, leaf in leaves.items()
            )
            self.close(torch.tensor(worst), torch.tensor(0.0), "gradients of adapters, relative")
            self.check_chain_rule(got, base, adapters, config, batches)

    def check_chain_rule(self, got, base, adapters, config, batches):
        """Exactly: with the dense gradient G of W + scale · B·A, that of A is scale · Bᵀ·G and that
        of B scale · G·Aᵀ."""
        merged = {}
        for name, weight in base.items():
            path = name.removesuffix(".weight")
            a, b = adapters.get(f"{path}.lora_A.weight"), adapters.get(f"{path}.lora_B.weight")
            merged[name] = weight if a is None else weight + self.SCALE * b @ a
        dense = run(dict(OURS, **config), merged, batches)
        self.assertLessEqual(abs(got["losses"][0] - dense["losses"][0]).item(), 1e-12)
        for name, a in adapters.items():
            if "lora_B" in name:
                continue
            b, gradient = (
                adapters[name.replace("lora_A", "lora_B")],
                dense["grads"][name.replace("lora_A.", "")],
            )
            for what, expected in (
                (name, self.SCALE * b.t() @ gradient),
                (name.replace("lora_A", "lora_B"), self.SCALE * gradient @ a.t()),
            ):
                self.assertLessEqual(
                    ((got["grads"][what] - expected).norm() / expected.norm()).item(), 1e-10, what
                )

    def test_gradients_are_those_of_the_dense_formula(self):
        batches = tokens()
        self.check_gradients(lambda logits: mean_loss(logits, batches["labels"][0]), {}, batches)

    @staticmethod
    def log_odds(logits, labels, beta):
        """Mean log-probability of each sequence's labels, and beta · log sigmoid of the log odds
        ratio of each pair: rows 0 … b−1 are chosen."""
        nll = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
        ).view(labels.shape)
        log_p = -nll.sum(1) / (labels != IGNORED).sum(1)
        odds = log_p - torch.log(1 - log_p.exp())
        pairs = len(log_p) // 2
        return log_p[:pairs], beta * functional.logsigmoid(odds[:pairs] - odds[pairs:])

    def test_preference_pairs(self):
        """ORPO as NxDT has it (base_orpo.py): the likelihood is that of the log-probabilities."""
        batches, beta = tokens(), 0.3
        batches["labels"][0, 1, :9] = IGNORED

        def loss_of(logits):
            log_p, ratio = self.log_odds(logits, batches["labels"][0], beta)
            return -(log_p + ratio).mean()

        self.check_gradients(loss_of, dict(orpo_beta=beta), batches)

    def trl_loss(self, logits, batches, beta):
        """ORPO as TRL 0.24 has it (orpo_trainer.py): prompts count in the likelihood, not in the
        odds; its mean is over tokens, not sequences."""
        labels = batches["labels"][0]
        pairs = len(labels) // 2
        ids = batches["input_ids"][0, :pairs]
        if "attention_mask" in batches:
            ids = torch.where(batches["attention_mask"][0, :pairs] == 1, ids, IGNORED)
        nll = functional.cross_entropy(
            logits[:pairs, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=IGNORED
        )
        return nll - self.log_odds(logits, labels, beta)[1].mean()

    def test_preference_pairs_of_trl(self):
        batches, beta = tokens(), 0.3
        batches["labels"][0, :, :9] = IGNORED
        batches["labels"][0, :, -1] = IGNORED
        self.check_gradients(
            lambda logits: self.trl_loss(logits, batches, beta),
            dict(orpo_beta=beta, orpo_trl=True),
            batches,
        )

    def test_padded_preference_pairs_of_trl(self):
        """Two pairs of unequal lengths: the formula over the logits of the program, whose padding
        is of no account."""
        _, base, adapters = self.setup_weights()
        two = [tokens(), tokens()]
        batches = {key: torch.cat([two[0][key], two[1][key].flip(-1)], 1) for key in two[0]}
        mask = torch.ones_like(batches["labels"])
        for row, length in enumerate((32, 20, 25, 11)):
            mask[0, row, length:] = 0
        batches["labels"] = torch.where(
            functional.pad(mask[..., 1:], (0, 1)) == 1, batches["labels"], IGNORED
        )
        batches["attention_mask"] = mask
        got = run(
            dict(OURS, lora_rank=self.RANK, orpo_beta=0.3, orpo_trl=True),
            {**base, **adapters},
            batches,
        )
        self.close(
            got["losses"][0], self.trl_loss(got["logits"].transpose(0, 1), batches, 0.3), "loss"
        )

    def test_frozen_weights_do_not_move(self):
        _, base, adapters = self.setup_weights()
        options = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
        after = run(
            dict(OURS, lora_rank=self.RANK), {**base, **adapters}, tokens(5), optimizer=options
        )["weights"]
        for name, weight in base.items():
            self.assertTrue(torch.equal(after[name], weight), name)
        for name, weight in adapters.items():
            self.assertGreater((after[name] - weight).abs().max().item(), 1e-4, name)


if __name__ == "__main__":
    unittest.main()
