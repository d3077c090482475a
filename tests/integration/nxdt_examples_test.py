#!/usr/bin/env python3
"""NxDT's example configurations, made small: each trains on real data."""

import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
EXAMPLES = SOURCE / "examples/nxdt"

HIDDEN, HEADS, SEQUENCE, VOCABULARY, STEPS = 64, 4, 32, 512, 2

# What a file becomes: TP, PP, DP, copies of key/value heads, key/value heads, layers; and what only
# this file has. Everything else is the file's own.
SMALL = {
    "hf_llama3.1_405B_trn1": (2, 2, 1, 2, 1, 3),
    "hf_llama3.1_70B": (2, 2, 1, 2, 1, 2),
    "hf_llama3.1_8B": (4, 1, 1, 2, 2, 2),
    "hf_llama3_70B": (2, 2, 1, 2, 1, 3),
    "hf_llama3_70B_trn2": (
        2,
        2,
        1,
        2,
        1,
        3,
        "model.pipeline_cuts=[model.layers.1]",
        "trainer.sequential_move_factor=2",
    ),
    # Context parallelism 2 takes the place of data parallelism.
    "hf_llama3_70B_CP": (2, 2, 2, 2, 1, 3),
    "hf_llama3_8B": (2, 1, 2, 2, 1, 2),
    "hf_llama3_8B_trn2": (2, 1, 2, 2, 1, 2),
    "hf_llama_7B": (2, 1, 2, 1, 4, 2),
    "megatron_gpt": (2, 1, 2, 1, 4, 2),
    "megatron_llama_7B": (2, 1, 2, 1, 4, 2),
    "megatron_llama_70b": (2, 2, 1, 1, 2, 2),
    "megatron_mistral": (2, 1, 2, 1, 2, 2, "model.sliding_window_size=8"),
    "hf_mixtral_8x7b": (2, 2, 2, 1, 2, 2, "distributed_strategy.expert_model_parallel_size=2"),
    "hf_mixtral_8x7b_dropless": (2, 1, 2, 1, 2, 2),
    "megatron_mixtral_8x7b": (2, 1, 2, 1, 2, 2),
    "megatron_mixtral_8x7b_dropless": (
        1,
        2,
        2,
        1,
        2,
        2,
        "distributed_strategy.expert_model_parallel_size=2",
    ),
}
# The same of fine-tuning, on records of the repository.
ALIGNED = {
    "hf_llama3_8B_SFT": (4, 1, 1, 2, 2, 2),
    "hf_llama3_8B_SFT_lora": (4, 1, 1, 2, 2, 2),
    "hf_llama3_8B_DPO": (2, 1, 2, 2, 1, 2, "model_alignment_strategy.dpo.max_prompt_length=20"),
    "hf_llama3_8B_ORPO": (2, 2, 1, 2, 1, 2, "model_alignment_strategy.orpo.max_prompt_length=20"),
    "megatron_llama2_7B_SFT": (2, 2, 1, 1, 4, 2),
}
NO_CHECKPOINTS = [
    "exp_manager.create_checkpoint_callback=false",
    "exp_manager.resume_if_exists=false",
]


def file_of(name):
    return EXAMPLES / f"{name}_config.yaml"


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.dir = pathlib.Path(cls.temporary.name)

    def trellis(self, *args):
        return subprocess.run(
            [TRELLIS, *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=300
        )


class Trains(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import datasets

        datasets.disable_progress_bars()
        text = (EXAMPLES / "README.md").read_bytes() * 4
        rows = [
            list(text[first : first + SEQUENCE])
            for first in range(0, len(text) - SEQUENCE, SEQUENCE)
        ]
        datasets.Dataset.from_dict(
            {"input_ids": rows, "labels": rows, "attention_mask": [[1] * SEQUENCE] * len(rows)}
        ).save_to_disk(str(cls.dir / "arrow"))
        (cls.dir / "text.jsonl").write_text(
            "".join(
                json.dumps({"text": line}) + "\n" for line in text.decode().splitlines() if line
            )
        )
        subprocess.run(
            [TRELLIS, "data", "build", "text.jsonl", "--output", "megatron"],
            cwd=cls.dir,
            check=True,
            capture_output=True,
        )

    def data(self, name):
        if name in ALIGNED:
            file = "preferences" if name.endswith(("DPO", "ORPO")) else "answers"
            return [
                f"data.train_dir={SOURCE}/examples/alignment/{file}.jsonl",
                "data.val_dir=null",
                *([f"data.seq_length={SEQUENCE}"] if name.startswith("hf_") else []),
                "data.tokenizer={library: byte-level}",
                "model.weight_init_only=false",
                "exp_manager.resume_from_checkpoint=null",
            ]
        if name.startswith("hf_"):
            return [f"data.train_dir={self.dir}/arrow"]
        return [
            f"data.data_prefix=[1.0, {self.dir}/megatron]",
            "data.tokenizer.library=byte-level",
            "data.tokenizer.type=null",
        ]

    def overrides(self, name):
        tp, pp, dp, copies, kv_heads, layers, *own = {**SMALL, **ALIGNED}[name]
        megatron_keys = (
            [] if name.startswith("megatron_") else [f"distributed_strategy.kv_replicator={copies}"]
        )
        return [
            f"trainer.devices={tp * pp * dp}",
            "trainer.num_nodes=1",
            f"trainer.max_steps={STEPS}",
            "exp_manager.use_datetime_version=false",
            f"distributed_strategy.tensor_model_parallel_size={tp}",
            f"distributed_strategy.pipeline_model_parallel_size={pp}",
            f"model.num_layers={layers}",
            f"model.hidden_size={HIDDEN}",
            f"model.ffn_hidden_size={2 * HIDDEN}",
            f"model.num_attention_heads={HEADS}",
            f"model.num_kv_heads={kv_heads}",
            f"model.vocab_size={VOCABULARY}",
            f"model.encoder_seq_length={SEQUENCE}",
            "data.global_batch_size=4",
            *megatron_keys,
            *NO_CHECKPOINTS,
            *self.data(name),
            *own,
        ]

    def train(self, name, *args):
        folder = self.dir / "-".join([name, *args])
        result = self.trellis(
            "train",
            file_of(name),
            *self.overrides(name),
            f"exp_manager.explicit_log_dir={folder}",
            *args,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def test_every_file_is_in_one_of_the_tables(self):
        self.assertEqual(
            {file_of(name) for table in (SMALL, ALIGNED) for name in table},
            set(EXAMPLES.glob("*.yaml")),
        )
        self.assertEqual(len(SMALL) + len(ALIGNED), 22)

    def test_each_of_those_in_scope(self):
        for name in SMALL:
            with self.subTest(name):
                steps = self.train(name, "--device", "cpu")
                self.assertEqual([step["step"] for step in steps], [1, 2])
                for step in steps:
                    self.assertAlmostEqual(step["loss"], math.log(VOCABULARY), delta=0.5)
                    self.assertGreater(step["grad_norm"], 0)
                self.assertGreater(steps[-1]["lr"], steps[0]["lr"])  # they all warm up
                self.assertEqual(steps[-1]["consumed_samples"], 8)
                if "mixtral" in name:  # 2 layers × 4 sequences × 2 experts per token
                    routed = steps[0]["routed_tokens"] + steps[0]["dropped_tokens"]
                    self.assertEqual(routed, 2 * 4 * SEQUENCE * 2)

    def test_each_of_fine_tuning(self):
        for name in ALIGNED:
            with self.subTest(name):
                steps = self.train(name, "--device", "cpu")
                self.assertEqual(len(steps), STEPS)
                if name.endswith(("DPO", "ORPO")):
                    self.check_logged_rewards(name, steps)
                if name.endswith("DPO"):
                    self.assertAlmostEqual(steps[0]["loss"], math.log(2), places=4)
                    self.assertAlmostEqual(steps[0]["rewards/margins"], 0, places=4)
                else:
                    self.assertAlmostEqual(steps[0]["loss"], math.log(VOCABULARY), delta=0.5)
                self.assertGreater(steps[0]["grad_norm"], 0)

    def check_logged_rewards(self, name, steps):
        """TensorBoard shows what metrics.jsonl has."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.dir / f"{name}---device-cpu"))
        events.Reload()
        for tag in ("chosen", "rejected", "accuracies", "margins"):
            logged = [event.value for event in events.Scalars(f"rewards/{tag}")]
            self.assertEqual(len(logged), STEPS)
            for value, step in zip(logged, steps, strict=True):
                self.assertAlmostEqual(value, step[f"rewards/{tag}"], places=6)

    def test_each_of_fine_tuning_is_simulated_at_full_size(self):
        for name in ALIGNED:
            with self.subTest(name):
                done = self.trellis("simulate", file_of(name), "--json")
                self.assertEqual(done.returncode, 0, done.stderr[-3000:])
                self.assertGreater(json.loads(done.stdout)["simulated"]["step_time_ps"], 0)

    def test_emulated_cores_give_the_losses_of_the_cpu(self):
        machine = ["--device", "neuron", "--instance", "trn2.48xlarge"]
        for cpu, neuron in zip(
            self.train("hf_llama3_70B_trn2", "--device", "cpu"),
            self.train("hf_llama3_70B_trn2", *machine),
            strict=True,
        ):
            self.assertAlmostEqual(neuron["loss"], cpu["loss"], delta=1e-3)
            self.assertGreater(neuron["step_time_ms"], 0)

    def test_the_commands_of_the_guide_work_as_written(self):
        (self.dir / "examples").symlink_to(SOURCE / "examples")
        path = {**os.environ, "PATH": f"{TRELLIS.parent}:{os.environ['PATH']}"}
        guide = (EXAMPLES / "README.md").read_text()
        commands = [
            line
            for block in re.findall(r"```\n(.*?)```", guide, re.DOTALL)
            for line in block.replace("\\\n", " ").splitlines()
        ]
        for verb in ("validate", "train"):
            command = next(line for line in commands if line.startswith(f"trellis {verb} "))
            result = subprocess.run(
                shlex.split(command, comments=True),
                capture_output=True,
                text=True,
                cwd=self.dir,
                env=path,
                timeout=300,
            )
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertRegex(result.stdout, r"Loss \d\.\d+ → \d\.\d+ nats/token in 5 steps")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
