#!/usr/bin/env python3
"""`trellis export`: what other programs' own parsers make of it."""

import contextlib
import importlib.util
import io
import json
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
