#!/usr/bin/env python3
"""Weights of transformers go through a training in another layout and back: the same bytes, the
same losses, the same logits. Models are small and random."""

import filecmp
import json
import unittest

import cli_case
import torch
import transformers
from cli_case import SOURCE
from torch.nn import functional

TOLERANCE = 1e-5
SEQUENCE, BATCH = 16, 8
# Byte-level tokens; 8 · TP 2 divides the rows of the tables in a training: 272 of them.
VOCABULARY, PADDED = 257, 272
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=SEQUENCE,
    rms_norm_eps=1e-5,
)
GPT2 = dict(
    vocab_size=VOCABULARY,
    n_positions=SEQUENCE,
    n_embd=32,
    n_inner=128,
    n_layer=2,
    n_head=4,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
    activation_function="gelu",
)
OURS = [
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_attention_heads=4",
    "model.num_kv_heads=2",
    f"model.encoder_seq_length={SEQUENCE}",
    f"data.global_batch_size={BATCH}",
    "data.micro_batch_size=1",
    "precision.type=fp32",
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1}",
    "--device",
    "cpu",
]
OURS_GPT2 = [
    "model.ffn_hidden_size=128",
    "model.num_kv_heads=4",
    "model.normalization=layernorm",
    "model.activation=gelu",
    "model.has_bias=true",
    "model.position_embedding_type=learned_absolute",
    "model.share_embeddings_and_output_weights=true",
]
# Updates that no weight is near to: what was loaded is saved.
STILL = ["model.optim.lr=1e-38", "model.optim.weight_decay=0", "model.optim.sched=null"]


def random_model(kind, config):
    torch.manual_seed(3)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
    return model.eval()


def llama(**changes):
    return random_model(
        transformers.LlamaForCausalLM, transformers.LlamaConfig(**{**SIZES, **changes})
    )


class Case(cli_case.CheckedCase):
    def setUp(self):
        super().setUp()
        # With the end of the document one global batch, in whatever order.
        self.text = "".join(chr(97 + i * i % 23) for i in range(BATCH * (SEQUENCE + 1) - 1))
        (self.dir / "text.txt").write_text(self.text)

    def save(self, model):
        folder = self.dir / "hub"
        model.save_pretrained(folder, max_shard_size=30_000)
        (folder / "tokenizer_config.json").write_text('{"model_max_length": 16}\n')
        return folder

    def train(self, run, *args, steps=1):
        """The checkpoint at the end."""
        self.trellis(
            "train",
            SOURCE / "examples/quickstart.yaml",
            *OURS,
            f"data.train_dir={self.dir / 'text.txt'}",
            f"trainer.max_steps={steps}",
            f"exp_manager.explicit_log_dir={self.dir / run}",
            *args,
        )
        (checkpoint,) = (self.dir / run / "checkpoints").glob("*-last.ckpt")
        return checkpoint

    def losses(self, run):
        lines = (self.dir / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    @torch.no_grad()
    def expected_loss(self, model):
        tokens = torch.tensor([*self.text.encode(), 256]).view(BATCH, SEQUENCE + 1)
        # Rows of padding are zero, and count in the softmax, as in Megatron.
        logits = functional.pad(model(tokens[:, :-1]).logits, (0, PADDED - VOCABULARY))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()

    def same_logits(self, a, b):
        tokens = torch.randint(0, VOCABULARY, (3, SEQUENCE), generator=torch.Generator())
        with torch.no_grad():
            got, expected = (model(tokens).logits[..., :VOCABULARY] for model in (a, b))
        self.assertLessEqual((got - expected).abs().max().item(), TOLERANCE)

    def load(self, folder, kind=transformers.AutoModelForCausalLM):
        model, info = kind.from_pretrained(folder, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[what], what)
        return model.eval()

    def check(self, model, *options):
        hub = self.save(model)
        checkpoint = self.train("still", *options, *STILL, "--init-from", hub)
        # Our loss is that of transformers.
        self.assertAlmostEqual(self.losses("still")[0], self.expected_loss(model), delta=TOLERANCE)
        # Every byte comes back.
        self.trellis(
            *("checkpoint", "export-hf", checkpoint, "--like", hub, "--out", self.dir / "back"),
            *("--max-shard-size", 30_000 / 1e9),
        )
        files = sorted(path.name for path in hub.iterdir())
        self.assertGreater(len(files), 5)
        self.assertEqual(files, sorted(path.name for path in (self.dir / "back").iterdir()))
        _, differ, errors = filecmp.cmpfiles(hub, self.dir / "back", files, shallow=False)
        self.assertEqual((differ, errors), ([], []))
        # With a config.json that is made of our configuration transformers says the same.
        self.trellis("checkpoint", "export-hf", checkpoint, "--out", self.dir / "made")
        self.same_logits(self.load(self.dir / "made"), model)
        self.check_trained(hub, *options)

    def check_trained(self, hub, *options):
        """After two steps of training the loss of the third is what transformers computes."""
        options = (*options, "model.optim.lr=1e-3", "model.optim.sched=null")
        checkpoint = self.train(
            "two", *options, "trainer.max_epochs=9", "--init-from", hub, steps=2
        )
        out = self.dir / "trained"
        self.trellis("checkpoint", "export-hf", checkpoint, "--like", hub, "--out", out)
        self.train("three", *options, *STILL, "trainer.max_epochs=9", "--init-from", out)
        expected = self.expected_loss(self.load(out))
        self.assertAlmostEqual(self.losses("three")[0], expected, delta=TOLERANCE)
        self.assertLess(expected, self.losses("two")[0] - 100 * TOLERANCE)


class Llama(Case):
    def test_grouped_heads_through_tp_2_pp_2_dp_2(self):
        self.check(llama())

    def test_tied_embeddings(self):
        self.check(
            llama(tie_word_embeddings=True), "model.share_embeddings_and_output_weights=true"
        )


class Import(Case):
    def test_import_hf_gives_every_byte_back(self):
        hub = self.save(llama())
        config = SOURCE / "examples/quickstart.yaml"
        ours = [option for option in OURS if option not in ("--device", "cpu")]
        self.trellis(
            *("checkpoint", "import-hf", hub, *ours, "--config", config, "--out", "imported.ckpt")
        )
        self.assertEqual(len(list((self.dir / "imported.ckpt/model").iterdir())), 4)
        self.trellis(
            *("checkpoint", "export-hf", "imported.ckpt", "--like", hub, "--out", "back"),
            *("--max-shard-size", 30_000 / 1e9),
        )
        for file in hub.glob("model*"):
            self.assertEqual(file.read_bytes(), (self.dir / "back" / file.name).read_bytes())
        # With the model's own configuration, in its types.
        said = self.trellis(
            *("import", hub, "--out", "own.yaml", "--checkpoint", hub, "--verify"),
            *("--output-checkpoint", "own.ckpt"),
        )
        self.assertIn("every byte is that of the source", said.stdout)
        # A training starts from it as from the folder itself.
        for run, place in (("a", hub), ("b", self.dir / "imported.ckpt")):
            self.train(run, "--init-from", place, steps=1)
        self.assertEqual(self.losses("a"), self.losses("b"))
        error = self.trellis(
            *("checkpoint", "import-hf", "imported.ckpt", "--config", config, "--out", "c"),
            returncode=2,
        ).stderr
        self.assertIn("expected a checkpoint of the format hugging_face, got trellis", error)


class Mistral(Case):
    def test_sliding_window(self):
        config = transformers.MistralConfig(**SIZES, sliding_window=7)
        self.check(
            random_model(transformers.MistralForCausalLM, config), "model.sliding_window_size=7"
        )


class Qwen2(Case):
    def test_biases_and_a_tied_head(self):
        config = transformers.Qwen2Config(**SIZES, tie_word_embeddings=True)
        self.check(
            random_model(transformers.Qwen2ForCausalLM, config),
            *("model.qkv_bias=true", "model.share_embeddings_and_output_weights=true"),
        )


class Qwen3(Case):
    def test_norms_of_queries_and_keys(self):
        config = transformers.Qwen3Config(**SIZES, head_dim=12)
        self.check(
            random_model(transformers.Qwen3ForCausalLM, config),
            *("model.qk_layernorm=true", "model.kv_channels=12"),
        )


class Olmo2(Case):
    def test_norms_behind_the_blocks_and_across_heads(self):
        self.check(
            random_model(transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**SIZES)),
            "model.transformer_block_type=reordered_norm",
            *("model.qk_layernorm=true", "model.qk_layernorm_across_heads=true"),
        )


class Gpt2(Case):
    def test_tied_and_transposed(self):
        model = random_model(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2))
        self.check(model, *OURS_GPT2)


class Refused(Case):
    def test_other_sizes_name_the_key_and_then_the_tensor(self):
        hub = self.save(llama(num_hidden_layers=1))
        command = ["train", SOURCE / "examples/quickstart.yaml", *OURS, "--init-from", hub]
        error = self.trellis(*command, returncode=2).stderr
        self.assertIn("num_hidden_layers: expected 2 by ", error)
        accept = "exp_manager.accept_differences=[model.num_layers]"
        error = self.trellis(*command, accept, returncode=2).stderr
        self.assertIn("has no model.layers.1.self_attn.q_proj.weight", error)

    def test_a_training_does_not_go_on_from_it(self):
        hub = self.save(llama())
        error = self.trellis(
            *("train", SOURCE / "examples/quickstart.yaml", *OURS),
            f"exp_manager.resume_from_checkpoint={hub}",
            returncode=2,
        ).stderr
        self.assertIn("--init-from", error)

    def test_a_folder_with_a_model_is_not_overwritten(self):
        hub = self.save(llama())
        before = {path.name: path.read_bytes() for path in hub.iterdir()}
        error = self.trellis(
            "checkpoint", "export-hf", hub, "--like", hub, "--out", hub, returncode=2
        ).stderr
        self.assertIn("expected an empty folder", error)
        self.assertEqual(before, {path.name: path.read_bytes() for path in hub.iterdir()})


if __name__ == "__main__":
    unittest.main()
