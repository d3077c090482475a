#!/usr/bin/env python3
"""`trellis export`: what other programs' own parsers make of it."""

import argparse
import contextlib
import importlib.util
import io
import json
import shlex
import shutil
import sys
import types
import unittest

from cli_case import SOURCE, Case

EXAMPLES = sorted((SOURCE / "examples/nxdt").glob("*.yaml"))
LLAMA_8B = """
[model]
name = "llama3"
flavor = "8B"
[optimizer]
lr = 3e-4
beta2 = 0.99
weight_decay = 0.2
[lr_scheduler]
warmup_steps = 20
decay_ratio = 0.25
decay_type = "sqrt"
min_lr_factor = 0.125
[training]
local_batch_size = 2
global_batch_size = 64
seq_len = 4096
max_norm = 0.5
steps = 100
dataset_path = "text"
[parallelism]
data_parallel_replicate_degree = 4
data_parallel_shard_degree = 1
tensor_parallel_degree = 4
context_parallel_degree = 2
context_parallel_rotate_method = "alltoall"
[checkpoint]
enable = true
interval = 50
keep_latest_k = 3
[activation_checkpoint]
mode = "full"
[debug]
seed = 7
"""


def titan_parser():
    """torchtitan's ConfigManager without torchtitan's models, which need Triton."""
    if "torchtitan" not in sys.modules:
        package = types.ModuleType("torchtitan")
        spec = importlib.util.find_spec("torchtitan")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["torchtitan"] = package
    from torchtitan.config.manager import ConfigManager

    return ConfigManager()


def leaves(values, path=""):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


class Torchtitan(Case):
    def parsed(self, text):
        path = self.dir / "parsed.toml"
        path.write_text(text)
        with contextlib.redirect_stderr(io.StringIO()):
            config = titan_parser().parse_args(["--job.config_file", str(path)])
        return dict(leaves(config.to_dict()))

    def exported(self, file, *args):
        result = self.trellis("export", file, "--to", "torchtitan", "--json", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_its_parser_reads_every_example(self):
        for file in EXAMPLES:
            with self.subTest(file=file.name):
                document = self.exported(file)
                config = self.parsed(document["text"])
                for key, value in config.items():
                    if isinstance(value, float) or key in ("optimizer.lr", "training.max_norm"):
                        self.assertIsInstance(value, float, key)
                listed = {key["key"] for key in document["left_out"]}
                self.assertIn("compiler_flags", listed)
                self.assertTrue(all(key["why"] for key in document["left_out"]))
                llama = "llama3.1_8B" in file.name or file.name == "hf_llama3_8B_config.yaml"
                if llama and "8B" in config["model.flavor"]:
                    self.assertEqual(config["model.flavor"], "8B")

    def test_in_and_out_keeps_every_key(self):
        source = self.dir / "source.toml"
        source.write_text(LLAMA_8B)
        result = self.trellis("import", source, "--out", "own.yaml")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        before = self.parsed(LLAMA_8B)
        after = self.parsed(self.exported("own.yaml")["text"])
        sharded = {  # ZeRO-1 shards states, which FSDP is nearest to
            "parallelism.data_parallel_replicate_degree",
            "parallelism.data_parallel_shard_degree",
            "parallelism.fsdp_reshard_after_forward",
        }
        different = {key for key in before if before[key] != after[key]} - sharded
        self.assertLessEqual(different, {"job.config_file", "checkpoint.folder"})
        ranks = [
            c["parallelism.data_parallel_replicate_degree"]
            * c["parallelism.data_parallel_shard_degree"]
            for c in (before, after)
        ]
        self.assertEqual(ranks[0], ranks[1])


# What the parser of Megatron-LM's pretraining takes (megatron/training/arguments.py and the
# dataclasses that it makes arguments of, August 2026): the arguments that an export may write, by
# the type of their value. No package has that parser.
MEGATRON_TYPES = {
    int: """num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels num-query-groups
        seq-length max-position-embeddings vocab-size make-vocab-size-divisible-by rotary-base
        rotary-seq-len-interpolation-factor recompute-num-layers num-experts moe-ffn-hidden-size
        moe-shared-expert-intermediate-size moe-router-topk tensor-model-parallel-size
        pipeline-model-parallel-size num-virtual-stages-per-pipeline-rank context-parallel-size
        expert-model-parallel-size micro-batch-size global-batch-size train-iters eval-interval
        eval-iters exit-duration-in-mins log-interval save-interval seed lr-warmup-iters
        lr-decay-iters lr-wsd-decay-iters num-workers""",
    float: """norm-epsilon init-method-std hidden-dropout attention-dropout rotary-percent
        rope-scaling-factor moe-router-topk-scaling-factor moe-input-jitter-eps
        moe-expert-capacity-factor clip-grad lr min-lr weight-decay adam-beta1 adam-beta2 adam-eps
        sgd-momentum""",
    str: """tensorboard-dir save load split tokenizer-model vocab-file merge-file
        data-cache-path""",
    bool: """group-query-attention swiglu openai-gelu qk-layernorm apply-layernorm-1p
        apply-query-key-layer-scaling use-rope-scaling untie-embeddings-and-output-weights
        disable-bias-linear add-qkv-bias fp32-residual-connection fp16-lm-cross-entropy
        use-cpu-initialization moe-router-pre-softmax sequence-parallel use-distributed-optimizer
        bf16 log-params-norm async-save exit-on-missing-checkpoint finetune reset-position-ids
        reset-attention-mask eod-mask-loss mock-data""",
}
MEGATRON_LISTS = {
    "data-path": str,
    "train-data-path": str,
    "valid-data-path": str,
    "test-data-path": str,
    "recompute-modules": str,
    "cp-comm-type": str,
    "moe-aux-loss-coeff": float,
}
MEGATRON_CHOICES = {
    "position-embedding-type": "learned_absolute rope yarn mrope relative none",
    "normalization": "LayerNorm RMSNorm",
    "attention-backend": "flash fused unfused local auto",
    "recompute-granularity": "full selective",
    "recompute-method": "uniform block",
    "moe-router-load-balancing-type": "aux_loss seq_aux_loss global_aux_loss sinkhorn none",
    "optimizer": "adam sgd muon dist_muon lion soap adaptive_muon",
    "lr-decay-style": "constant linear cosine inverse-square-root WSD",
    "lr-wsd-decay-style": "exponential linear cosine minus_sqrt",
    "dataloader-type": "single cyclic external",
    "tokenizer-type": "BertWordPieceLowerCase BertWordPieceCase GPT2BPETokenizer "
    "SentencePieceTokenizer GPTSentencePieceTokenizer HuggingFaceTokenizer Llama2Tokenizer "
    "TikTokenizer NullTokenizer",
}


def megatron_parser():
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for kind, names in MEGATRON_TYPES.items():
        how = {"action": "store_true"} if kind is bool else {"type": kind}
        for name in names.split():
            parser.add_argument("--" + name, **how)
    for name, kind in MEGATRON_LISTS.items():
        parser.add_argument("--" + name, type=kind, nargs="*")
    for name, choices in MEGATRON_CHOICES.items():
        parser.add_argument("--" + name, choices=choices.split())
    parser.add_argument("--window-size", type=lambda text: tuple(map(int, text.split(","))))
    return parser


class MegatronArguments(Case):
    """Of each example: what Megatron-LM's parser takes, and what it asks of values together."""

    def parsed(self, script):
        words = shlex.split(script.replace("\\\n", " "), comments=True)
        start = words.index("pretrain_gpt.py")
        launcher = words[words.index("torchrun") + 1 : start]
        launch = dict(zip(launcher[::2], map(int, launcher[1::2])))
        args, unknown = megatron_parser().parse_known_args(words[start + 1 :])
        self.assertEqual(unknown, [])
        return args, launch["--nproc_per_node"] * launch["--nnodes"]

    def check_rules(self, a, ranks, left_out):
        """Of validate_args() of the same file, and of TransformerConfig of megatron-core."""
        stages = a.pipeline_model_parallel_size * (a.num_virtual_stages_per_pipeline_rank or 1)
        model = a.tensor_model_parallel_size * a.pipeline_model_parallel_size
        model *= a.context_parallel_size
        self.assertEqual(ranks % model, 0)
        self.assertEqual(a.global_batch_size % (a.micro_batch_size * ranks // model), 0)
        self.assertEqual(
            a.num_layers % stages > 0,
            any("cannot be divided evenly" in key["why"] for key in left_out),
        )
        self.assertTrue(a.kv_channels or a.hidden_size % a.num_attention_heads == 0)
        self.assertTrue(
            a.context_parallel_size == 1 or a.seq_length % (2 * a.context_parallel_size) == 0
        )
        self.assertGreaterEqual(a.max_position_embeddings, a.seq_length)
        self.assertLessEqual(a.min_lr or 0, a.lr)
        self.assertTrue(a.save is None or a.save_interval > 0)
        self.assertEqual(a.group_query_attention, a.num_query_groups is not None)
        self.assertEqual(
            (a.num_experts or a.expert_model_parallel_size) % a.expert_model_parallel_size, 0
        )
        full = a.recompute_granularity == "full"
        self.assertEqual(
            (a.recompute_method is not None, bool(a.recompute_num_layers)), (full, full)
        )
        self.assertFalse(a.fp16_lm_cross_entropy)
        self.assertTrue(a.bf16 or not a.fp32_residual_connection)
        by_split = a.train_data_path or a.valid_data_path or a.test_data_path
        self.assertEqual(sum(map(bool, (a.mock_data, a.data_path, by_split))), 1)
        if a.lr_decay_style != "constant":
            self.assertLess(a.lr_warmup_iters or 0, a.lr_decay_iters or a.train_iters)

    def test_its_parser_takes_every_example(self):
        own = [SOURCE / "examples" / f"{name}.yaml" for name in ("quickstart", "verify_mixtral")]
        for file in [*EXAMPLES, *own]:
            with self.subTest(file=file.name):
                result = self.trellis("export", file, "--to", "megatron-args", "--json")
                self.assertEqual(result.returncode, 0, result.stderr)
                document = json.loads(result.stdout)
                self.check_rules(*self.parsed(document["text"]), document["left_out"])


class OptimumNeuron(Case):
    def test_in_and_out_keeps_every_argument(self):
        arguments = {
            "output_dir": "runs",
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 1,
            "disable_sequence_parallel": False,
            "zero_1": True,
            "bf16": True,
            "use_autocast": False,
            "stochastic_rounding_enabled": False,
            "optimizer_use_master_weights": True,
            "optimizer_use_fp32_grad_acc": True,
            "max_steps": 100,
            "learning_rate": 1e-5,
            "weight_decay": 0.1,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_epsilon": 1e-6,
            "max_grad_norm": 0.5,
            "optim": "adamw_torch",
            "lr_scheduler_type": "cosine",
            "warmup_steps": 10,
            "logging_steps": 5,
            "save_strategy": "steps",
            "save_steps": 50,
            "save_total_limit": 2,
            "eval_strategy": "steps",
            "eval_steps": 20,
            "gradient_checkpointing": True,
            "report_to": "tensorboard",
            "seed": 7,
            "dataloader_num_workers": 3,
        }
        (self.dir / "args.json").write_text(json.dumps({**arguments, "world_size": 32}))
        model = SOURCE / "examples/nxdt/model_configs/llama3_8B/config.json"
        shutil.copy(model, self.dir / "config.json")
        result = self.trellis(
            "import", "config.json", "--training-args", "args.json", "--out", "own.yaml"
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        result = self.trellis("export", "own.yaml", "--to", "optimum-neuron", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        written = json.loads(document["text"])
        self.assertEqual({key: written.get(key) for key in arguments}, arguments)
        listed = {key["key"]: key["why"] for key in document["left_out"]}
        self.assertIn("torchrun", listed["trainer.devices"])
        self.assertNotIn("model.optim.lr", listed)


if __name__ == "__main__":
    unittest.main()
