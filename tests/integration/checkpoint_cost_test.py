#!/usr/bin/env python3
"""What simulated checkpoints cost: the bytes are those that `train` writes, the time follows the
storage, and `cost` takes it."""

import json
import unittest

import cli_case
import torch
from cli_case import QUICKSTART, SOURCE

LLAMA = SOURCE / "examples/llama3_8b_trn1.yaml"
SMALL = [
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_attention_heads=4",
    "model.num_kv_heads=2",
    "model.encoder_seq_length=16",
    "data.global_batch_size=8",
    "data.micro_batch_size=1",
]
GATHERS = "model.dist_ckpt_parallel_dist_opt=false"
MIXED = "precision.type=mixed_precision"
SAVES = [
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: -1, "
    "save_last: false, every_n_train_steps: 1, filename: 'm--{step}'}",
]


class Case(cli_case.CheckedCase):
    def simulate(self, config, *args):
        log = f"exp_manager.explicit_log_dir={self.dir}/run"
        return json.loads(self.trellis("simulate", config, log, "--json", *args).stdout)

    def checkpoints(self, config, *args):
        return self.simulate(config, *args)["checkpoints"]


def tensor_bytes(path):
    """Of all different tensors in a file."""
    seen = {}

    def visit(value):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            seen[storage.data_ptr() or id(value)] = storage.nbytes()
        elif isinstance(value, dict):
            for item in value.values():
                visit(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)

    visit(torch.load(path, weights_only=True))
    return sum(seen.values())


class Bytes(Case):
    """Simulated files are those that `train` writes."""

    def compare(self, *args):
        options = [*SMALL, *SAVES, *args, "trainer.max_steps=1"]
        run = self.dir / f"trained_{len(list(self.dir.iterdir()))}"
        text = self.dir / "text.txt"
        text.write_text("abcdefgh" * 100)
        log = f"exp_manager.explicit_log_dir={run}"
        data = f"data.train_dir={text}"
        self.trellis("train", QUICKSTART, *options, log, data, "--device", "cpu")
        folder = run / "checkpoints/m--step=1.ckpt"
        files = [*folder.glob("model/**/*"), *folder.glob("optim/**/*")]
        files = [path for path in files if path.is_file()]
        simulated = self.checkpoints(QUICKSTART, *options, "--checkpoint-storage", "nvme")
        self.assertEqual(simulated["files"], len(files))
        return simulated["bytes"], files

    def test_of_a_file_per_rank(self):
        for layout in (
            ["distributed_strategy.tensor_model_parallel_size=2"],
            [
                "distributed_strategy.tensor_model_parallel_size=2",
                "distributed_strategy.pipeline_model_parallel_size=2",
                MIXED,
            ],
            ["distributed_strategy.zero1=false"],
            ["exp_manager.save_bf16=true"],
            [GATHERS, MIXED],
        ):
            with self.subTest(layout=layout):
                simulated, files = self.compare(*layout)
                self.assertEqual(simulated, sum(map(tensor_bytes, files)))

    def test_of_a_file_per_tensor(self):
        simulated, files = self.compare("exp_manager.save_xser=true", MIXED)
        tensors = [path for path in files if path.name.startswith("tensor_")]
        self.assertTrue(tensors)
        self.assertEqual(simulated, sum(map(tensor_bytes, tensors)))

    def test_folded_ranks_count_as_all_ranks(self):
        for more in ([], [GATHERS]):
            options = [*SMALL, MIXED, "--checkpoint-every", "10", *more]
            folded = self.checkpoints(QUICKSTART, *options)
            self.assertEqual(folded, self.checkpoints(QUICKSTART, *options, "--no-fold"))


class Cost(Case):
    def test_states_that_first_ranks_write_are_gathered(self):
        every = ["--checkpoint-every", "100", "--checkpoint-storage", "nvme"]
        parallel = self.checkpoints(LLAMA, *every)
        gathered = self.checkpoints(LLAMA, *every, GATHERS)
        self.assertNotIn("gathered_bytes", parallel["save"])
        # The same weights and, except for padding of shards, states, in fewer files.
        self.assertAlmostEqual(gathered["bytes"] / parallel["bytes"], 1, delta=0.001)
        self.assertLess(gathered["files"], parallel["files"])
        # All but the first ranks' parts of two moments and masters travel, then few ranks write.
        self.assertGreater(gathered["save"]["gathered_bytes"], 0.4 * gathered["bytes"])
        self.assertLess(gathered["save"]["gathered_bytes"], gathered["bytes"])
        self.assertGreater(gathered["save"]["gathered_ps"], parallel["save"]["copied_ps"])
        self.assertGreater(gathered["save"]["complete_ps"], parallel["save"]["complete_ps"])

    def test_asynchronous_saves_of_8b_wait_for_the_copy_alone(self):
        every = ["--checkpoint-every", "100", "--checkpoint-storage", "fsx"]
        synchronous = self.checkpoints(LLAMA, *every)
        asynchronous = self.checkpoints(LLAMA, *every, "exp_manager.async_checkpointing=true")
        self.assertEqual(synchronous["bytes"], asynchronous["bytes"])
        # Weights in bf16, and masters and two moments in fp32.
        self.assertAlmostEqual(synchronous["bytes"] / (8.03e9 * 14), 1, delta=0.05)
        save = asynchronous["save"]
        self.assertEqual(asynchronous["waits"]["own_ps"], save["copied_ps"])
        self.assertEqual(synchronous["waits"]["own_ps"], save["complete_ps"])
        small = asynchronous["waits"]["share_of_step"] <= 0.02
        self.assertEqual(small, "because" not in asynchronous["waits"])
        # No storage is faster than its documented rate.
        rate = synchronous["bytes"] / ((save["written_ps"] - save["copied_ps"]) * 1e-12)
        self.assertLessEqual(rate, 20e9 / 8 * 1.01)

    def test_a_faster_storage_takes_less(self):
        every = ["--checkpoint-every", "10", "--checkpoint-storage", "fsx"]
        usual = self.checkpoints(QUICKSTART, *every)
        slow = self.checkpoints(QUICKSTART, *every, "--set", "storage.write.node=1 Gbps")
        self.assertGreater(slow["save"]["complete_ps"], usual["save"]["complete_ps"])
        self.assertEqual(slow["restart"], usual["restart"])

    def test_a_restart_reads_shared_files_once(self):
        """Two data-parallel ranks need the same weights."""
        options = [*SMALL, *SAVES, "--checkpoint-storage", "fsx"]
        once = self.checkpoints(QUICKSTART, *options)
        each = self.checkpoints(QUICKSTART, *options, "model.dist_ckpt_parallel_load=false")
        self.assertGreater(each["restart"]["total_ps"], once["restart"]["total_ps"])
        self.assertEqual(each["save"], once["save"])

    def test_the_report_the_trace_and_cost_have_it(self):
        run = self.dir / "run"
        log = f"exp_manager.explicit_log_dir={run}"
        args = ["--checkpoint-every", "100", "--checkpoint-storage", "s3"]
        text = self.trellis("simulate", LLAMA, log, "--trace-format", "text", *args).stdout
        self.assertIn("Checkpoints on s3, every 100 steps, synchronous", text)
        self.assertIn('"copy to the host"', (run / "trace.txt").read_text())
        report = json.loads((run / "report.json").read_text())
        prices = SOURCE / "examples/prices.yaml"
        common = ["--prices", prices, "--steps", "1000", "--mtbf", "10d", "--json"]
        cost = json.loads(self.trellis("cost", run, *common).stdout)
        waits = report["checkpoints"]["waits"]["total_ps"] * 1e-12
        expected = next(case for case in cost["cases"] if case["name"] == "expected")
        self.assertAlmostEqual(expected["checkpoints_s"], 10 * waits, delta=0.02 * 10 * waits)

    def test_errors(self):
        says = self.trellis("simulate", QUICKSTART, "--checkpoint-storage", "nmve", returncode=2)
        self.assertIn("nvme", says.stderr)
        again = ("--checkpoint-every", 2, "model.dist_ckpt_format=torch_dist")
        says = self.trellis("simulate", QUICKSTART, *again, returncode=2)
        self.assertIn("writing a checkpoint in a second form is not modelled", says.stderr)
        says = self.trellis("simulate", QUICKSTART, "--checkpoint-storage", "s3", returncode=2)
        self.assertIn("how often", says.stderr)
        other = ["--set", "storage.capacity=1 TiB"]
        says = self.trellis("simulate", QUICKSTART, *other, returncode=2)
        self.assertIn("storage.capacity", says.stderr)


if __name__ == "__main__":
    unittest.main()
