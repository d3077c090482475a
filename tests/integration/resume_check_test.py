#!/usr/bin/env python3
"""`trellis resume-check`: a cut run equals the uninterrupted one bit by bit, in another layout it
reads the same samples, every seeded defect is named, bad input has a text."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
SMALL = [
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_attention_heads=4",
    "model.num_kv_heads=2",
    "model.encoder_seq_length=16",
    "model.hidden_dropout=0.1",
    "data.global_batch_size=8",
    "data.micro_batch_size=1",
]
# Each defect needs a run in which it can make a difference.
EMA = "exp_manager.ema={enable: true, decay: 0.9}"
STOPPING = [
    "exp_manager.create_early_stopping_callback=true",
    "exp_manager.early_stopping_callback_params={monitor: reduced_train_loss, min_delta: 0}",
]
PLATEAU = "model.optim.sched={name: ReduceLROnPlateau}"
DEFECTS = {
    "moments-restart": ("state ", []),
    "masters-restart": ("master", []),
    "averages-restart": ("moving average", [EMA]),
    "weight-bit-flipped": ("weight", []),
    "step-restarts": ("step", []),
    "dropout-restarts": ("random state", []),
    "schedule-restarts": ("schedule", [PLATEAU]),
    "callbacks-restart": ("callbacks", STOPPING),
    "samples-restart": ("samples", []),
    "sample-skipped": ("samples", []),
}


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        # Three global batches and a little more: steps 4 and 7 begin a new epoch.
        self.text = self.dir / "text.txt"
        self.text.write_text("".join(chr(97 + i * i % 23) for i in range(3 * 8 * 17 + 40)))

    def run_check(self, *args, returncode=0):
        result = subprocess.run(
            [
                TRELLIS,
                "resume-check",
                SOURCE / "examples/quickstart.yaml",
                *SMALL,
                f"data.train_dir={self.text}",
                *map(str, args),
            ],
            capture_output=True,
            text=True,
            cwd=self.dir,
            env={**os.environ, "TMPDIR": str(self.dir)},
            timeout=600,
        )
        self.assertEqual(result.returncode, returncode, result.stdout + result.stderr[-3000:])
        return result

    def check(self, *args, returncode=0):
        return json.loads(self.run_check(*args, "--json", returncode=returncode).stdout)


class Exact(Case):
    def test_mid_epoch_and_across_epochs_with_and_without_prefetch(self):
        hashes = []
        for workers in (0, 4):
            found = self.check(
                "--steps", 9, "--cut", "2,3,7", f"data.num_workers={workers}", EMA, *STOPPING
            )
            self.assertTrue(found["bit_by_bit"])
            self.assertTrue(found["equal"])
            self.assertEqual([row["step"] for row in found["hashes"]], list(range(10)))
            self.assertGreater(found["compared"], 9 * 8 * 20)  # steps × ranks × tensors
            hashes.append(found["hashes"])
        self.assertEqual(*hashes)

    def test_every_precision_on_emulated_cores(self):
        for precision in ("fp32", "bf16SR", "mixed_precisionSR"):
            found = self.check(
                "--steps", 4, "--cut", 2, "--device", "neuron", f"precision.type={precision}"
            )
            self.assertTrue(found["equal"], precision)

    def test_fully_sharded(self):
        words = [
            "distributed_strategy.fsdp=true",
            "distributed_strategy.pipeline_model_parallel_size=1",
            EMA,
        ]
        copies = "distributed_strategy.data_parallel_replicate_size=2"
        for device, more in (("cpu", []), ("neuron", [copies, "trainer.devices=4"])):
            report = self.check(*words, *more, "--steps", 4, "--cut", 2, "--device", device)
            self.assertTrue(report["equal"], report)

    def test_saved_as_the_run_saves(self):
        asynchronous = "exp_manager.async_checkpointing=true"
        dcp = "exp_manager.use_zero1_dcp=true"
        for keys in (["exp_manager.save_xser=true"], [asynchronous], [asynchronous, dcp]):
            self.assertTrue(self.check("--steps", 4, "--cut", 2, *keys)["equal"], keys)
        kept = self.dir / "kept"
        self.run_check("--steps", 3, "--cut", 1, "--folder", kept)
        self.assertEqual([f.name for f in kept.glob("*.ckpt")], ["cut--step=1-last.ckpt"])
        self.assertEqual(list(self.dir.glob("trellis_resume_*")), [])


class Layouts(Case):
    def test_other_layouts_read_the_same_samples_and_stay_near(self):
        after = {
            "DP 4 to 2": [["trainer.devices=4"], ["trainer.devices=2"]],
            "DP 4, fully sharded in two copies, to 2": [
                [
                    "trainer.devices=4",
                    "distributed_strategy.fsdp=true",
                    "distributed_strategy.data_parallel_replicate_size=2",
                ],
                [
                    "trainer.devices=2",
                    "distributed_strategy.fsdp=false",
                    "distributed_strategy.data_parallel_replicate_size=1",
                ],
            ],
            "DP 2 to 4, fully sharded": [
                ["trainer.devices=2"],
                ["trainer.devices=4", "distributed_strategy.fsdp=true"],
            ],
            "TP, PP to DP": [
                [],
                [
                    "distributed_strategy.tensor_model_parallel_size=1",
                    "distributed_strategy.pipeline_model_parallel_size=1",
                    "distributed_strategy.sequence_parallel=false",
                    "distributed_strategy.zero1=false",
                ],
            ],
        }
        flat = [
            "distributed_strategy.tensor_model_parallel_size=1",
            "distributed_strategy.pipeline_model_parallel_size=1",
            "distributed_strategy.sequence_parallel=false",
        ]
        for name, (before, keys) in after.items():
            options = [part for key in keys for part in ("--after-cut", key)]
            base = [*flat, *before] if name.startswith("DP") else before
            found = self.check(*base, "--steps", 6, "--cut", 3, "precision.type=fp64", *options)
            self.assertFalse(found["bit_by_bit"])
            self.assertTrue(found["equal"], name)
            self.assertIsNone(found["first_difference"])
            self.assertLessEqual(found["closeness"]["error"], 1e-10)

    def test_another_number_of_context_parallel_ranks(self):
        ring = ["model.fusions={ring_attention: true, flash_attention: false}"]
        size = "distributed_strategy.context_parallel_size"
        flat = [
            "distributed_strategy.tensor_model_parallel_size=1",
            "distributed_strategy.pipeline_model_parallel_size=1",
            "distributed_strategy.sequence_parallel=false",
            "trainer.devices=4",
            "precision.type=fp64",
        ]
        for before, after in ((2, 4), (4, 1)):
            found = self.check(
                *flat, *ring, f"{size}={before}", "--steps", 4, "--cut", 2,
                "--after-cut", f"{size}={after}",
            )  # fmt: skip
            self.assertTrue(found["equal"], (before, after))
            self.assertLessEqual(found["closeness"]["error"], 1e-10)

    def test_a_defect_is_far_in_another_layout_too(self):
        found = self.check(
            "--steps", 6, "--cut", 3, "precision.type=fp64", "--after-cut",
            "distributed_strategy.zero1=false", "--seed-bug", "moments-restart", returncode=5,
        )  # fmt: skip
        self.assertGreater(found["closeness"]["error"], 1e-6)
        found = self.check(
            "--steps", 6, "--cut", 3, "precision.type=fp64", "--after-cut",
            "distributed_strategy.zero1=false", "--seed-bug", "samples-restart", returncode=5,
        )  # fmt: skip
        self.assertEqual(found["first_difference"]["item"], "samples")


class Defects(Case):
    def test_each_is_noticed_and_named(self):
        for name, (item, keys) in DEFECTS.items():
            with self.subTest(name):
                found = self.check(
                    "--steps", 5, "--cut", 2, *keys, "--seed-bug", name, returncode=5
                )
                first = found["first_difference"]
                self.assertTrue(first["item"].startswith(item), first)
                of_data = item == "samples"
                self.assertEqual(first["step"], 3 if of_data else 2)
                self.assertEqual(first["as_resumed"], not of_data)
                if item in ("weight", "master"):
                    self.assertIn(".weight", first["tensor"])
                    self.assertIsNotNone(first["rank"])

    def test_the_text_names_step_item_rank_and_tensor(self):
        text = self.run_check(
            "--steps", 4, "--cut", 2, "--seed-bug", "weight-bit-flipped", returncode=5
        ).stdout
        self.assertRegex(
            text,
            r"first difference after step 2, as resumed: weight of \S+ on rank 7: "
            r"expected [0-9a-f]{32}, got [0-9a-f]{32}",
        )


class BadInput(Case):
    def test_each_has_a_text(self):
        for arguments, text in {
            ("--cut", "5", "--steps", "5"): "expected ascending steps from 1 to 4",
            ("--cut", "3,2"): "expected ascending steps",
            ("--after-cut", "data.global_batch_size=16"): "runs are compared step by step",
            ("--seed-bug", "nothing"): "moments-restart: ",
            ("model.hidden_size=33",): "hidden_size",
        }.items():
            with self.subTest(arguments):
                self.assertIn(text, self.run_check(*arguments, returncode=2).stderr)

    def test_a_folder_of_another_run_is_left_alone(self):
        folder = self.dir / "kept"
        self.run_check("--steps", 3, "--cut", 1, "--folder", folder)
        before = sorted(folder.rglob("*"))
        found = self.run_check("--steps", 3, "--cut", 1, "--folder", folder, returncode=2)
        self.assertIn("holds the checkpoints of another run", found.stderr)
        self.assertEqual(sorted(folder.rglob("*")), before)

    def test_what_a_checkpoint_leaves_out_is_named(self):
        weights_only = "exp_manager.checkpoint_callback_params={save_weights_only: true}"
        found = self.run_check("--steps", 4, "--cut", 2, weights_only, returncode=2)
        self.assertIn("has no optimizer.state.", found.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2))
