#!/usr/bin/env python3
"""Mixtures of experts in folders of megatron-core: its GPTModel loads what we write and computes
the logits of transformers' Mixtral, and what it saves comes back."""

import argparse
import json
import shutil
import unittest

import megatron_core_test as megatron
import torch
import transformers
from cli_case import QUICKSTART
from megatron_core_test import FFN, HEADS, HIDDEN, KV_HEADS, SEQUENCE, VOCABULARY

LAYERS, EXPERTS = 4, 4
OURS = [
    *megatron.OURS,
    f"model.num_layers={LAYERS}",
    "data.global_batch_size=8",
    "data.micro_batch_size=1",
]
EVERY = f"model.moe={{num_experts: {EXPERTS}, top_k: 2, dropless: true}}"
SECOND = f"model.moe={{num_experts: {EXPERTS}, top_k: 2, dropless: true, frequency: 2}}"


def megatron_model(pattern=1):
    megatron.on_the_cpu()
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # which it forgets without transformer_engine
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=KV_HEADS,
        ffn_hidden_size=FFN,
        num_moe_experts=EXPERTS,
        moe_router_topk=2,
        moe_layer_freq=pattern,
        moe_token_dispatcher_type="allgather",
        use_cpu_initialization=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        attention_dropout=0,
        hidden_dropout=0,
        layernorm_epsilon=1e-5,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
    )
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    model = GPTModel(
        config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    return megatron.randomize(model)


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=SEQUENCE,
        rms_norm_eps=1e-5,
        sliding_window=None,
        rope_theta=10000.0,
    )
    return megatron.randomize(transformers.MixtralForCausalLM(config))


class Case(megatron.Case):
    def save(self, model):
        from megatron.core import dist_checkpointing

        folder = self.dir / "megatron"
        folder.mkdir()
        arguments = argparse.Namespace(
            num_attention_heads=HEADS,
            group_query_attention=True,
            num_query_groups=KV_HEADS,
            num_layers=LAYERS,
            num_experts=EXPERTS,
            moe_router_topk=2,
        )
        dist_checkpointing.save({**model.sharded_state_dict(), "args": arguments}, str(folder))
        return folder

    def load(self, model, folder):
        from megatron.core import dist_checkpointing

        state = dist_checkpointing.load(model.sharded_state_dict(), str(self.dir / folder))
        model.load_state_dict({k: v for k, v in state.items() if k in model.state_dict()})
        return model

    def train(self, name, *options, steps=2):
        self.trellis(
            *("train", QUICKSTART, *OURS, f"trainer.max_steps={steps}", "--device", "cpu"),
            *("exp_manager.create_checkpoint_callback=true", *options),
            *("exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1}",),
            f"exp_manager.explicit_log_dir={self.dir / name}",
        )
        (saved,) = (self.dir / name / "checkpoints").glob("*-last.ckpt")
        with open(self.dir / name / "metrics.jsonl") as log:
            lines = [json.loads(line) for line in log]
        return saved, [(line["step"], line["loss"]) for line in lines]


class Mixtral(Case):
    def test_megatron_core_computes_transformers_logits_from_our_folder(self):
        megatron.on_the_cpu()
        model = mixtral()
        model.save_pretrained(self.dir / "hub")
        self.trellis(
            *("checkpoint", "convert", "hub", "--to", "megatron", "--out", "ours"),
            *("--heads", HEADS, "--kv-heads", KV_HEADS),
        )
        self.close(
            megatron.logits_of(self.load(megatron_model(), "ours")), megatron.logits_of(model)
        )
        self.trellis("checkpoint", "diff", "hub", "ours")

    def test_its_folder_becomes_transformers(self):
        model = megatron_model()
        folder = self.save(model)
        mixtral().save_pretrained(self.dir / "like")
        self.trellis("checkpoint", "export-hf", folder, "--like", "like", "--out", "hub")
        hub = transformers.AutoModelForCausalLM.from_pretrained(self.dir / "hub").eval()
        self.close(megatron.logits_of(hub), megatron.logits_of(model))


class Training(Case):
    def check_tensors(self, folder, saved, layers, axis):
        """Plain tensors of the folder against the whole ones; `axis`: all layers are one tensor."""
        from megatron.core import dist_checkpointing

        plain = dist_checkpointing.load_plain_tensors(str(folder))
        self.trellis("checkpoint", "convert", saved, "--to", "full", "--out", f"{folder}.pt")
        whole = torch.load(f"{folder}.pt", weights_only=True)
        names = {
            "expert_mlps.mlp_op.gate_up_proj": "experts.experts.linear_fc1",
            "expert_mlps.mlp_op.down_proj": "experts.experts.linear_fc2",
            "router.linear_router": "router",
        }
        for state in ("", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."):
            for layer in layers:
                for ours, theirs in names.items():
                    number = "" if axis else f"{layer}."
                    got = plain[f"{state}decoder.layers.{number}mlp.{theirs}.weight"]
                    got = got[layer] if axis else got
                    self.assertEqual(got.dim(), 2 if theirs == "router" else 3)
                    expected = whole[f"{state}model.layers.{layer}.mlp.{ours}.weight"]
                    self.assertTrue(torch.equal(got.reshape(expected.shape), expected))

    def check(self, moe, layers, axis, model, pp):
        megatron.on_the_cpu()
        layout = [
            *("distributed_strategy.expert_model_parallel_size=2", "trainer.devices=8"),
            *(f"distributed_strategy.pipeline_model_parallel_size={pp}", moe),
        ]
        saved, _ = self.train("run", *layout, "model.dist_ckpt_format=torch_dist")
        direct = saved / "iter_0000002"
        self.assertEqual(len({p.name.split("_")[2] for p in direct.glob("*.distcp")}), 9)
        self.trellis("checkpoint", "diff", saved, direct)
        self.trellis("checkpoint", "convert", saved, "--to", "megatron", "--out", "ours")
        self.trellis("checkpoint", "diff", "ours", direct)
        self.trellis("checkpoint", "diff", "ours", saved)
        for folder in (direct, self.dir / "ours"):
            self.check_tensors(folder, saved, layers, axis)
            self.load(model, folder)
        from megatron.core import dist_checkpointing

        arguments = vars(dist_checkpointing.load_common_state_dict(str(direct))["args"])
        self.assertEqual(arguments["num_experts"], EXPERTS)
        self.assertEqual(arguments["moe_router_topk"], 2)
        self.assertEqual(arguments["moe_ffn_hidden_size"], FFN)
        self.assertEqual(arguments["moe_layer_freq"], model.config.moe_layer_freq)
        config = self.dir / "config.yaml"
        shutil.copy(QUICKSTART, config)
        self.trellis(
            *("checkpoint", "convert", "ours", *OURS, *layout, "--to", "native"),
            *("--config", config, "--out", "back.ckpt"),
        )
        self.trellis("checkpoint", "diff", saved, "back.ckpt")
        # A training goes on, in another layout too.
        other = [
            *("distributed_strategy.expert_model_parallel_size=4", "trainer.devices=4"),
            *("distributed_strategy.tensor_model_parallel_size=1", moe),
            *("distributed_strategy.pipeline_model_parallel_size=1",),
            "model.make_vocab_size_divisible_by=16",
        ]
        for each in (layout, other):
            losses = []
            for i, folder in enumerate((saved, direct)):
                shutil.rmtree(self.dir / f"more{i}", ignore_errors=True)
                resume = f"exp_manager.resume_from_checkpoint={folder}"
                losses.append(self.train(f"more{i}", *each, resume, steps=3)[1])
            self.assertEqual([step for step, _ in losses[0]], [3])
            self.assertEqual(losses[0], losses[1])

    def test_mixtures_in_every_layer(self):
        self.check(EVERY, range(LAYERS), True, megatron_model(), pp=2)

    def test_mixtures_in_every_second_layer(self):
        self.check(SECOND, (1, 3), False, megatron_model([0, 1, 0, 1]), pp=1)

    def test_states_that_several_ranks_have(self):
        for option in (
            "distributed_strategy.zero1=false",
            "model.dist_ckpt_parallel_dist_opt=false",
        ):
            with self.subTest(option):
                saved, _ = self.train(
                    *(option, option, EVERY, "model.dist_ckpt_format=torch_dist"),
                    *("distributed_strategy.expert_model_parallel_size=2", "trainer.devices=8"),
                    "distributed_strategy.pipeline_model_parallel_size=1",
                )
                self.trellis("checkpoint", "diff", saved, saved / "iter_0000002")


class Refused(Case):
    def test_another_mixture(self):
        folder = self.save(megatron_model())
        config = self.dir / "config.yaml"
        shutil.copy(QUICKSTART, config)
        error = self.trellis(
            *("checkpoint", "convert", folder, *OURS, EVERY.replace("top_k: 2", "top_k: 3")),
            *("--to", "native", "--config", config, "--out", "native", "--weights-only"),
            returncode=2,
        ).stderr
        self.assertIn("args.moe_router_topk: expected 3", error)
        self.assertIn("got 2", error)

    def test_shared_experts_are_not_written(self):
        error = self.trellis(
            *("train", QUICKSTART, *OURS, EVERY[:-1] + ", num_shared_experts: 1}"),
            *("model.dist_ckpt_format=torch_dist", "--device", "cpu"),
            returncode=2,
        ).stderr
        self.assertIn("torch_dist is not written for shared experts", error)

    def test_experts_without_their_axis(self):
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing import ShardedTensor

        model = megatron_model()
        state = {
            name: ShardedTensor.from_rank_offsets(name, torch.rand(shape))
            for name, shape in (
                ("embedding.word_embeddings.weight", (VOCABULARY, HIDDEN)),
                ("decoder.layers.mlp.experts.experts.linear_fc1.weight", (LAYERS, FFN, HIDDEN)),
            )
        }
        del model
        (self.dir / "flat").mkdir()
        dist_checkpointing.save(state, str(self.dir / "flat"))
        error = self.trellis("checkpoint", "inspect", "flat", returncode=2).stderr
        key = "decoder.layers.0.mlp.experts.experts.linear_fc1.weight"
        self.assertIn(f"{key}: expected three dimensions", error)
        self.assertIn(f"got [{FFN}, {HIDDEN}]", error)


if __name__ == "__main__":
    unittest.main()
