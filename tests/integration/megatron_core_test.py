#!/usr/bin/env python3
"""Folders of megatron-core go in and out: its GPTModel loads what we write and computes the logits
of transformers, and what it saves comes back."""

import argparse
import contextlib
import json
import tempfile
import unittest
import warnings

import cli_case
import numpy
import torch
import torch.distributed as dist
import transformers
from cli_case import SOURCE

warnings.filterwarnings("ignore")
TOLERANCE = 1e-5
SEQUENCE, VOCABULARY, LAYERS, HIDDEN, FFN, HEADS, KV_HEADS = 16, 272, 2, 32, 48, 4, 2
LAYOUT = [
    "distributed_strategy.tensor_model_parallel_size=2",
    "distributed_strategy.pipeline_model_parallel_size=2",
]
OURS = [
    f"model.num_layers={LAYERS}",
    f"model.hidden_size={HIDDEN}",
    f"model.ffn_hidden_size={FFN}",
    f"model.num_attention_heads={HEADS}",
    f"model.num_kv_heads={KV_HEADS}",
    f"model.encoder_seq_length={SEQUENCE}",
    "precision.type=fp32",
]


def on_the_cpu():
    """megatron-core asks for CUDA, which this PyTorch does not have."""
    if dist.is_initialized():
        return
    rendezvous = tempfile.mktemp()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    parallel_state.initialize_model_parallel()


def megatron_model(family, groups=KV_HEADS):
    on_the_cpu()
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    llama = family == "llama"
    norm = "RMSNorm" if llama else "LayerNorm"
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=groups,
        ffn_hidden_size=FFN,
        use_cpu_initialization=True,
        gated_linear_unit=llama,
        activation_func=torch.nn.functional.silu if llama else torch.nn.functional.gelu,
        add_bias_linear=not llama,
        normalization=norm,
        attention_dropout=0,
        hidden_dropout=0,
        layernorm_epsilon=1e-5,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization=norm),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type="rope" if llama else "learned_absolute",
        share_embeddings_and_output_weights=not llama,
    )
    return randomize(model)


def randomize(model):
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
    return model.eval()


def transformers_model(family):
    if family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=FFN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=SEQUENCE,
            rms_norm_eps=1e-5,
        )
        return randomize(transformers.LlamaForCausalLM(config))
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=SEQUENCE,
        n_embd=HIDDEN,
        n_inner=FFN,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function="gelu",
    )
    return randomize(transformers.GPT2LMHeadModel(config))


@torch.no_grad()
def logits_of(model):
    tokens = torch.randint(0, VOCABULARY, (3, SEQUENCE), generator=torch.Generator())
    if isinstance(model, transformers.PreTrainedModel):
        return model(tokens).logits
    positions = torch.arange(SEQUENCE)[None].expand(3, -1)
    mask = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
    return model(tokens, positions, mask)


class Case(cli_case.CheckedCase):
    def close(self, a, b):
        self.assertLessEqual((a - b).abs().max().item(), TOLERANCE)

    def save(self, model, groups=KV_HEADS):
        """As Megatron-LM does, with the arguments of the training in common.pt."""
        from megatron.core import dist_checkpointing

        folder = self.dir / "megatron"
        folder.mkdir()
        arguments = argparse.Namespace(
            num_attention_heads=HEADS,
            group_query_attention=groups != HEADS,
            num_query_groups=groups,
            num_layers=LAYERS,
        )
        state = {**model.sharded_state_dict(), "args": arguments, "iteration": 7}
        dist_checkpointing.save(state, str(folder))
        return folder


class OurFolders(Case):
    def check(self, family):
        from megatron.core import dist_checkpointing

        model = transformers_model(family)
        model.save_pretrained(self.dir / "hub")
        self.trellis(
            *("checkpoint", "convert", "hub", "--to", "megatron", "--out", "ours"),
            *("--heads", HEADS, "--kv-heads", KV_HEADS if family == "llama" else HEADS),
        )
        theirs = megatron_model(family, KV_HEADS if family == "llama" else HEADS)
        state = dist_checkpointing.load(theirs.sharded_state_dict(), str(self.dir / "ours"))
        theirs.load_state_dict({k: v for k, v in state.items() if k in theirs.state_dict()})
        self.close(logits_of(theirs), logits_of(model))
        arguments = vars(dist_checkpointing.load_common_state_dict(self.dir / "ours")["args"])
        self.assertEqual(arguments["num_attention_heads"], HEADS)
        self.assertEqual(arguments["padded_vocab_size"], VOCABULARY)
        self.assertEqual(arguments["swiglu"], family == "llama")
        self.trellis("checkpoint", "diff", "hub", "ours")

    def test_llama(self):
        on_the_cpu()
        self.check("llama")

    def test_gpt(self):
        on_the_cpu()
        self.check("gpt")

    def test_a_training_with_its_states(self):
        """Every state has the place of its weight; the way back gives each bit again. What
        all ranks of the training write as torch_dist is the same, and Megatron-core reads it."""
        on_the_cpu()
        from megatron.core import dist_checkpointing

        self.trellis(
            *("train", SOURCE / "examples/quickstart.yaml", *OURS, "trainer.max_steps=2"),
            *("exp_manager.create_checkpoint_callback=true", "--device", "cpu"),
            *("exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1}",),
            "model.dist_ckpt_format=torch_dist",
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
        )
        (saved,) = (self.dir / "run/checkpoints").glob("*-last.ckpt")
        self.trellis("checkpoint", "convert", saved, "--to", "megatron", "--out", "ours")
        self.trellis("checkpoint", "diff", saved, "ours")
        direct = saved / "iter_0000002"
        self.assertEqual((saved / "latest_checkpointed_iteration.txt").read_text(), "2")
        self.trellis("checkpoint", "diff", "ours", direct)
        # All eight ranks wrote parts; the rest is that of the converted one.
        writers = {path.name.split("_")[2] for path in direct.glob("*.distcp")}
        self.assertEqual(writers, {str(rank) for rank in range(9)})
        common = [
            dist_checkpointing.load_common_state_dict(folder)
            for folder in (direct, self.dir / "ours")
        ]
        self.assertEqual(*common)
        theirs = megatron_model("llama")
        state = dist_checkpointing.load(theirs.sharded_state_dict(), str(direct))
        theirs.load_state_dict({k: v for k, v in state.items() if k in theirs.state_dict()})
        plain = dist_checkpointing.load_plain_tensors(str(direct))
        self.trellis("checkpoint", "convert", saved, "--to", "full", "--out", "whole.pt")
        whole = torch.load(self.dir / "whole.pt", weights_only=True)
        for state in ("", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."):
            for layer in range(LAYERS):
                path = f"{state}model.layers.{layer}."
                got = plain[f"{state}decoder.layers.mlp.linear_fc1.weight"][layer]
                parts = [whole[f"{path}mlp.{part}_proj.weight"] for part in ("gate", "up")]
                self.assertTrue(torch.equal(got, torch.cat(parts)))
                # Per group of heads: its queries, its key, its value.
                qkv = plain[f"{state}decoder.layers.self_attention.linear_qkv.weight"][layer]
                groups = [
                    whole[f"{path}self_attn.{part}_proj.weight"].view(KV_HEADS, -1, HIDDEN)
                    for part in "qkv"
                ]
                self.assertTrue(torch.equal(qkv, torch.cat(groups, 1).flatten(0, 1)))
        config = self.dir / "config.yaml"
        config.write_text((SOURCE / "examples/quickstart.yaml").read_text())
        self.trellis(
            *("checkpoint", "convert", "ours", *OURS, *LAYOUT, "--to", "native"),
            *("--config", config, "--out", "back.ckpt"),
        )
        self.trellis("checkpoint", "diff", saved, "back.ckpt")
        said = json.loads(self.trellis("checkpoint", "inspect", "back.ckpt", "--json").stdout)
        self.assertEqual((said["step"], said["consumed_samples"]), (2, 32))
        self.check_goes_on(saved)

    def check_goes_on(self, saved):
        """A training goes on from the native checkpoint, from what it saved as Megatron has it,
        and from a folder that names the converted one alike."""
        losses = []
        for name in (saved, saved / "iter_0000002", self.dir / "root"):
            if name.name == "root":
                name.mkdir()
                (self.dir / "ours").rename(name / "iter_0000002")
                (name / "latest_checkpointed_iteration.txt").write_text("2")
            self.trellis(
                *("train", SOURCE / "examples/quickstart.yaml", *OURS, "trainer.max_steps=4"),
                *("--device", "cpu", f"exp_manager.resume_from_checkpoint={name}"),
                f"exp_manager.explicit_log_dir={self.dir / 'more' / name.name}",
            )
            with open(self.dir / "more" / name.name / "metrics.jsonl") as log:
                lines = [json.loads(line) for line in log]
            losses.append([(line["step"], line["loss"]) for line in lines])
        self.assertEqual([step for step, _ in losses[0]], [3, 4])
        self.assertEqual(losses[1], losses[0])
        self.assertEqual(losses[2], losses[0])
        (name / "latest_checkpointed_iteration.txt").write_text("2x")
        error = self.trellis(
            *("train", SOURCE / "examples/quickstart.yaml", *OURS, "--device", "cpu"),
            f"exp_manager.resume_from_checkpoint={name}",
            returncode=2,
        ).stderr
        self.assertIn('expected a number of iterations or "release", got "2x"', error)


class TheirFolders(Case):
    def test_llama(self):
        model = megatron_model("llama")
        folder = self.save(model)
        transformers_model("llama").save_pretrained(self.dir / "like")
        self.trellis("checkpoint", "export-hf", folder, "--like", "like", "--out", "hub")
        hub = transformers.AutoModelForCausalLM.from_pretrained(self.dir / "hub").eval()
        self.close(logits_of(hub), logits_of(model))
        said = json.loads(self.trellis("checkpoint", "inspect", folder, "--json").stdout)
        self.assertEqual(said["format"], "megatron")

    def test_gpt(self):
        model = megatron_model("gpt", HEADS)
        folder = self.save(model, HEADS)
        transformers_model("gpt").save_pretrained(self.dir / "like")
        self.trellis("checkpoint", "export-hf", folder, "--like", "like", "--out", "hub")
        hub = transformers.AutoModelForCausalLM.from_pretrained(self.dir / "hub").eval()
        self.close(logits_of(hub), logits_of(model))


NEMO = f"""
name: gpt
trainer: {{devices: 1, num_nodes: 1, precision: 32, max_steps: 4, gradient_clip_val: 1.0}}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 2
  encoder_seq_length: {SEQUENCE}
  max_position_embeddings: ${{.encoder_seq_length}}
  num_layers: {LAYERS}
  hidden_size: {HIDDEN}
  ffn_hidden_size: {FFN}
  num_attention_heads: {HEADS}
  make_vocab_size_divisible_by: 16
  normalization: layernorm
  layernorm_epsilon: 1e-5
  activation: gelu
  bias: true
  position_embedding_type: learned_absolute
  share_embeddings_and_output_weights: true
  hidden_dropout: 0
  attention_dropout: 0
  optim: {{name: adamw, lr: 1e-2, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8}}
  tokenizer: {{library: byte-level}}
  data:
    dataloader_type: single
    data_prefix: [1.0, PREFIX]
    splits_string: "100,0,0"
    seq_length: {SEQUENCE}
exp_manager: {{explicit_log_dir: run, create_checkpoint_callback: false}}
"""


MEGATRON_LM = f"""
torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers {LAYERS} --hidden-size {HIDDEN} \\
  --ffn-hidden-size {FFN} --num-attention-heads {HEADS} --group-query-attention \\
  --num-query-groups {KV_HEADS} --seq-length {SEQUENCE} --max-position-embeddings {SEQUENCE} \\
  --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear \\
  --untie-embeddings-and-output-weights --vocab-size {VOCABULARY} --tokenizer-type NullTokenizer \\
  --make-vocab-size-divisible-by 8 --mock-data --micro-batch-size 1 --global-batch-size 4 \\
  --train-iters 10 --lr 1e-3 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
"""


class Imported(Case):
    """With the configuration that comes from Megatron-LM's arguments, TP 2 × PP 2."""

    def imported(self, folder, *options, returncode=0):
        (self.dir / "train.sh").write_text(MEGATRON_LM)
        return self.trellis(
            *("import", "train.sh", "--out", "own.yaml", "--force", "--checkpoint", folder),
            *("--output-checkpoint", "own.ckpt", "--verify", "--weights-only", *options),
            returncode=returncode,
        )

    def test_a_checkpoint_of_megatron_core(self):
        folder = self.save(megatron_model("llama"))
        self.assertIn("every byte", self.imported(folder).stdout)
        self.assertEqual(len(list((self.dir / "own.ckpt/model").iterdir())), 4)
        self.trellis("checkpoint", "diff", folder, "own.ckpt")

    def test_what_does_not_fit_is_named(self):
        folder = self.save(megatron_model("gpt", HEADS), HEADS)
        error = self.imported(folder, returncode=2).stderr
        self.assertIn("args.num_query_groups: expected 2", error)
        accept = ("--accept-difference", "model.num_kv_heads")
        error = self.imported(folder, *accept, returncode=2).stderr
        self.assertIn("model.layers.1.mlp.down_proj.weight", error)
        self.assertFalse((self.dir / "own.ckpt/model").exists())
        for words, said in (
            (["--checkpoint", folder], "--output-checkpoint"),
            (["--verify"], "--checkpoint"),
        ):
            result = self.trellis("import", "train.sh", "--out", "x.yaml", *words, returncode=2)
            self.assertIn(said, result.stderr)


class NemoRun(Case):
    """An imported configuration of NeMo trains as megatron-core's model does."""

    def data(self):
        """Indexed data of which every sample is the returned tokens, in whatever order: one
        document with the period of a sample."""
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        period = torch.randint(0, 256, (SEQUENCE,), generator=torch.Generator().manual_seed(3))
        builder = IndexedDatasetBuilder(f"{self.dir}/text.bin", dtype=numpy.int32)
        builder.add_document(period.repeat(8).int(), [8 * SEQUENCE])
        builder.finalize(f"{self.dir}/text.idx")
        return torch.cat([period, period[:1]])[None]

    def losses(self, model, tokens):
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() == 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
        mask = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
        losses = []
        for _ in range(4):
            inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            loss = model(inputs, torch.arange(SEQUENCE)[None], mask, labels=labels).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_the_losses_are_those_of_megatron_core(self):
        model = megatron_model("gpt", HEADS)
        folder = self.save(model, HEADS)
        expected = self.losses(model, self.data())
        (self.dir / "nemo.yaml").write_text(NEMO.replace("PREFIX", f"{self.dir}/text"))
        said = self.trellis(
            *("import", "nemo.yaml", "--from", "nemo", "--out", "own.yaml", "--verify"),
            *("--checkpoint", folder, "--output-checkpoint", "own.ckpt", "--weights-only"),
        )
        self.assertIn("every byte", said.stdout)
        self.trellis("train", "own.yaml", "--device", "cpu", "--init-from", "own.ckpt")
        with open(self.dir / "run/metrics.jsonl") as log:
            losses = [json.loads(line)["loss"] for line in log]
        self.assertGreater(expected[0] - expected[-1], 0.5)
        self.assertEqual(len(losses), 4)
        for got, wanted in zip(losses, expected, strict=True):
            self.assertAlmostEqual(got, wanted, delta=TOLERANCE)


class Refused(Case):
    def refused(self, path, *texts):
        error = self.trellis("checkpoint", "inspect", path, returncode=2).stderr
        for text in texts:
            self.assertIn(text, error)

    def test_nemo_archives(self):
        (self.dir / "model.nemo").write_bytes(b"a tar archive")
        self.refused("model.nemo", ".nemo", "torch_dist")

    def test_folders_of_ranks_and_zarr(self):
        (self.dir / "old/mp_rank_00").mkdir(parents=True)
        self.refused("old", "mp_rank_", "--ckpt-format torch_dist")
        (self.dir / "zarr").mkdir()
        (self.dir / "zarr/metadata.json").write_text('{"sharded_backend": "zarr"}')
        self.refused("zarr", "'zarr'", "expected torch_dist")

    def test_an_interrupted_save(self):
        folder = self.save(megatron_model("llama"))
        (folder / "metadata.json").unlink()
        self.refused(folder, "the save was interrupted")

    def test_a_missing_data_file(self):
        folder = self.save(megatron_model("llama"))
        for file in folder.glob("*.distcp"):
            file.unlink()
        self.trellis(
            *("checkpoint", "convert", folder, "--to", "full", "--out", "a.pt"), returncode=2
        )
        self.assertFalse((self.dir / "a.pt").exists())


if __name__ == "__main__":
    unittest.main()
