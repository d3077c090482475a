#!/usr/bin/env python3
"""`trellis import`: a run that comes from another program has that program's plan."""

import json
import random
import unittest

import yaml
from import_test import ImportCase


class Run:
    """A Llama, its layout and its schedule, drawn at random; what follows from them by the formulas
    of the papers, without the program."""

    def __init__(self, source, **fixed):
        pick = source.choice
        self.tp, self.pp, self.nodes = pick([1, 2, 4, 8]), pick([1, 2, 4]), pick([1, 2, 4])
        self.dp = pick([1, 2, 4]) * self.nodes
        self.vpp = pick([1, 2]) if self.pp > 1 else 1
        self.layers = self.pp * self.vpp * pick([1, 2, 3])
        self.kv, self.head = 8, pick([16, 32])
        self.heads = self.kv * pick([1, 2, 4])
        self.ffn, self.vocab = 128 * pick([3, 5, 8]), 1024 * pick([1, 3, 7])
        self.seq, self.micro = pick([64, 256]), pick([1, 2])
        self.batches = self.pp * pick([1, 2, 3])
        self.steps, self.lr = pick([200, 1000]), pick([1e-3, 3e-4])
        self.warmup = self.steps // pick([10, 20])
        vars(self).update(fixed)
        self.hidden = self.heads * self.head
        self.world = self.tp * self.pp * self.dp
        self.samples = self.micro * self.batches * self.dp

    def plan(self):
        matrices = 2 * self.hidden * (self.heads + self.kv) * self.head
        matrices += 3 * self.hidden * self.ffn
        layers = self.layers // self.pp * (matrices // self.tp + 2 * self.hidden)
        table = self.vocab * self.hidden // self.tp
        ranks = [layers] * self.pp
        ranks[0] += table
        ranks[-1] += self.hidden + table
        whole = self.layers * (matrices + 2 * self.hidden)
        return {
            "world_size": self.world,
            "tp": self.tp,
            "pp": self.pp,
            "vpp": self.vpp,
            "dp": self.dp,
            "num_microbatches": self.batches,
            "bubble": (self.pp - 1) / (self.vpp * self.batches),
            "parameters": whole + 2 * self.vocab * self.hidden + self.hidden,
            "parameters_of_pipeline_rank": ranks,
        }


class Plans(ImportCase):
    """The plan of an imported run is the original's: ranks, micro-batches, parameters of each rank,
    bubble and schedule, computed from the other program's own words."""

    def check(self, run, *source, **schedule):
        with self.subTest(**vars(run)):
            result = self.trellis("import", *source, "--out", "own.yaml", "--force")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            said = json.loads(self.trellis("validate", "own.yaml", "--json").stdout)["plan"]
            resolved = yaml.safe_load(said["resolved_yaml"])
            expected = run.plan()
            self.assertEqual({key: said[key] for key in expected}, expected)
            self.assertEqual(resolved["data"]["global_batch_size"], run.samples)
            self.assertEqual(resolved["data"]["micro_batch_size"], run.micro)
            self.assertEqual(resolved["model"]["encoder_seq_length"], run.seq)
            self.assertEqual(resolved["trainer"]["num_nodes"], run.nodes)
            self.assertEqual(resolved["trainer"]["max_steps"], run.steps)
            optim = resolved["model"]["optim"]
            self.assertEqual(float(optim["lr"]), run.lr)
            for key, value in {"warmup_steps": run.warmup, **schedule}.items():
                found = optim["sched"][key]
                self.assertEqual(found if key == "name" else float(found), value, key)

    def runs(self, seed, **fixed):
        source = random.Random(seed)
        return [Run(source, **fixed) for _ in range(5)]

    def test_nemo(self):
        for run in self.runs(1):
            rows = 128 * run.tp  # the bytes and one token, in whole blocks
            run.vocab = -(-257 // rows) * rows
            model = {
                "mcore_gpt": True,
                "micro_batch_size": run.micro,
                "global_batch_size": run.samples,
                "tensor_model_parallel_size": run.tp,
                "pipeline_model_parallel_size": run.pp,
                "virtual_pipeline_model_parallel_size": run.vpp if run.vpp > 1 else None,
                "encoder_seq_length": run.seq,
                "max_position_embeddings": "${.encoder_seq_length}",
                "num_layers": run.layers,
                "hidden_size": run.hidden,
                "ffn_hidden_size": run.ffn,
                "num_attention_heads": run.heads,
                "num_query_groups": run.kv,
                "make_vocab_size_divisible_by": 128,
                "normalization": "rmsnorm",
                "activation": "fast-swiglu",
                "bias": False,
                "position_embedding_type": "rope",
                "share_embeddings_and_output_weights": False,
                "megatron_amp_O2": True,
                "optim": {
                    "name": "distributed_fused_adam",
                    "lr": run.lr,
                    "sched": {
                        "name": "CosineAnnealing",
                        "warmup_steps": run.warmup,
                        "constant_steps": 7,
                        "min_lr": run.lr / 8,
                    },
                },
                "tokenizer": {"library": "byte-level"},
                "data": {
                    "data_prefix": [1.0, "text"],
                    "seq_length": run.seq,
                    "dataloader_type": "single",
                    "splits_string": "98,1,1",
                },
            }
            trainer = {
                "devices": run.world // run.nodes,
                "num_nodes": run.nodes,
                "precision": "bf16-mixed",
                "max_steps": run.steps,
            }
            source = self.write(yaml.safe_dump({"name": "x", "trainer": trainer, "model": model}))
            self.check(
                *(run, source, "--from", "nemo"),
                **{"name": "CosineAnnealing", "constant_steps": 7, "min_lr": run.lr / 8},
            )

    def test_megatron_lm(self):
        for run in self.runs(2):
            text = f"""
                torchrun --nproc_per_node {run.world // run.nodes} --nnodes {run.nodes} \\
                pretrain_gpt.py --num-layers {run.layers} --hidden-size {run.hidden} \\
                --ffn-hidden-size {run.ffn} --num-attention-heads {run.heads} \\
                --group-query-attention --num-query-groups {run.kv} --seq-length {run.seq} \\
                --max-position-embeddings {run.seq} --swiglu --normalization RMSNorm \\
                --position-embedding-type rope --disable-bias-linear --vocab-size {run.vocab - 5} \\
                --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer --mock-data \\
                --tensor-model-parallel-size {run.tp} --pipeline-model-parallel-size {run.pp} \\
                --micro-batch-size {run.micro} --global-batch-size {run.samples} --bf16 \\
                --train-samples {run.steps * run.samples} --lr {run.lr} --min-lr {run.lr / 4} \\
                --lr-decay-style cosine --lr-decay-samples {run.steps * run.samples // 2} \\
                --lr-warmup-fraction {2 * run.warmup / run.steps}"""
            if run.vpp > 1:
                each = run.layers // run.pp // run.vpp
                text += f" --num-layers-per-virtual-pipeline-stage {each}"
            self.check(
                *(run, self.write(text + "\n", "train.sh")),
                **{
                    "name": "CosineAnnealing",
                    "constant_steps": run.steps // 2,
                    "min_lr": run.lr / 4,
                },
            )

    def test_hugging_face(self):
        for run in self.runs(3, vpp=1):
            run.layers = run.pp * 2
            config = {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": run.hidden,
                "intermediate_size": run.ffn,
                "num_hidden_layers": run.layers,
                "num_attention_heads": run.heads,
                "num_key_value_heads": run.kv,
                "vocab_size": run.vocab,
                "max_position_embeddings": run.seq,
                "tie_word_embeddings": False,
            }
            arguments = {
                "per_device_train_batch_size": run.micro,
                "gradient_accumulation_steps": run.batches,
                "pipeline_parallel_num_microbatches": run.batches,
                "world_size": run.world,
                "num_machines": run.nodes,
                "tensor_parallel_size": run.tp,
                "pipeline_parallel_size": run.pp,
                "zero_1": True,
                "bf16": True,
                "max_steps": run.steps,
                "learning_rate": run.lr,
                "lr_scheduler_type": "cosine",
                "warmup_ratio": run.warmup / run.steps,
            }
            (self.dir / "config.json").write_text(json.dumps(config))
            args = self.write(json.dumps(arguments), "args.json")
            self.check(
                *(run, self.dir / "config.json", "--training-args", args),
                **{"name": "CosineAnnealing", "min_lr": 0},
            )

    def test_torchtitan(self):
        """The flavor 8B; ranks are on nodes of 32."""
        llama = dict(layers=32, heads=32, kv=8, head=128, ffn=14336, vocab=128256, vpp=1)
        for run in self.runs(4, **llama, nodes=1, dp=4):
            run = Run(random.Random(0), **{**vars(run), "tp": min(run.tp, 8 // run.pp)})
            text = f"""
                [model]
                name = "llama3"
                flavor = "8B"
                [optimizer]
                lr = {run.lr}
                [lr_scheduler]
                warmup_steps = {run.warmup}
                decay_ratio = 0.5
                decay_type = "cosine"
                min_lr_factor = 0.125
                [training]
                local_batch_size = {run.micro * run.batches}
                global_batch_size = {run.samples}
                seq_len = {run.seq}
                steps = {run.steps}
                [parallelism]
                data_parallel_replicate_degree = {run.dp}
                data_parallel_shard_degree = 1
                tensor_parallel_degree = {run.tp}
                pipeline_parallel_degree = {run.pp}
                pipeline_parallel_microbatch_size = {run.micro}
                pipeline_parallel_first_stage_less_layers = 0
                pipeline_parallel_last_stage_less_layers = 0
                """
            if run.pp == 1:
                text = text.replace(
                    f"local_batch_size = {run.micro * run.batches}",
                    f"local_batch_size = {run.micro}",
                )
            self.check(run, self.write(text, "titan.toml"), min_lr=run.lr / 8)


if __name__ == "__main__":
    unittest.main()
