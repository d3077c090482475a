#!/usr/bin/env python3
"""`trellis train` saves, is cut, and goes on: the same losses as without the cut."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
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
    "data.num_workers=2",
    "precision.type=fp32",
    "--device",
    "cpu",
]
PARAMS = (
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: -1, "
    "save_last: false, every_n_train_steps: 2, filename: 'm--{step}'}"
)
SAVES = ["exp_manager.create_checkpoint_callback=true", PARAMS]


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        # Three global batches and a little more: steps 4 and 7 begin a new epoch.
        self.text = self.dir / "text.txt"
        self.text.write_text("".join(chr(97 + i * i % 23) for i in range(3 * 8 * 17 + 40)))

    def command(self, folder, *args):
        return [
            TRELLIS,
            "train",
            SOURCE / "examples/quickstart.yaml",
            *SMALL,
            f"data.train_dir={self.text}",
            f"exp_manager.explicit_log_dir={folder}",
            *args,
        ]

    def train(self, folder, *args, returncode=0):
        result = subprocess.run(
            list(map(str, self.command(folder, *args))),
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(result.returncode, returncode, result.stderr[-3000:])
        return result

    def checkpoint(self, *args, returncode=0):
        result = subprocess.run(
            [TRELLIS, "checkpoint", *map(str, args)], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(result.returncode, returncode, result.stderr)
        return result

    def losses(self, folder):
        """By step: loss, norm of the gradients, learning rate, samples."""
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return {
            row["step"]: (row["loss"], row["grad_norm"], row["lr"], row["consumed_samples"])
            for row in rows
        }


class Resume(Case):
    def test_a_cut_run_goes_on_bit_for_bit(self):
        whole = self.dir / "whole"
        self.train(whole, "trainer.max_steps=8", *SAVES)
        expected = self.losses(whole)
        for step in (2, 4, 6):  # in the middle of an epoch, and after its end
            part = self.dir / f"from_{step}"
            self.train(
                part,
                "trainer.max_steps=8",
                f"exp_manager.resume_from_checkpoint={whole}/checkpoints/m--step={step}.ckpt",
            )
            self.assertEqual(
                self.losses(part),
                {number: row for number, row in expected.items() if number > step},
            )

    def test_interrupted_and_resumed_in_one_folder(self):
        whole, cut = self.dir / "whole", self.dir / "cut"
        steps = ["trainer.max_steps=40", *SAVES]
        self.train(whole, "trainer.max_steps=40")
        process = subprocess.Popen(
            list(map(str, self.command(cut, *steps))),
            cwd=self.dir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not list(cut.glob("checkpoints/*.ckpt/done")):
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=120), 0, process.stderr.read())
        process.stderr.close()
        self.assertEqual(len(list(cut.glob("checkpoints/*-last.ckpt/done"))), 1)
        self.train(cut, *steps, "--resume")
        first = self.losses(cut / "run_0")
        rest = self.losses(cut)
        self.assertEqual(min(rest), max(first) + 1)
        self.assertEqual({**first, **rest}, self.losses(whole))

    def test_killed_runs_go_on_from_the_last_complete_checkpoint(self):
        cut = self.dir / "cut"
        steps = ["trainer.max_steps=30", *SAVES]
        process = subprocess.Popen(
            list(map(str, self.command(cut, *steps))),
            cwd=self.dir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while len(list(cut.glob("checkpoints/*.ckpt/done"))) < 2:
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.kill()
        process.wait()
        self.train(cut, *steps, "exp_manager.resume_if_exists=true")
        self.assertEqual(max(self.losses(cut)), 30)
        self.assertEqual(list(cut.glob("checkpoints/*-unfinished")), [])
        self.assertTrue(all((tag / "done").exists() for tag in cut.glob("checkpoints/*.ckpt")))

    def test_a_full_disk_costs_a_checkpoint_and_not_the_training(self):
        run, steps = self.dir / "full", "trainer.max_steps=6"
        result = self.train(run, steps, *SAVES, "--fault", "disk:full@step=4")
        self.assertIn("the checkpoint of step 4 is not saved", result.stderr)
        self.assertIn("No space left on device", result.stderr)
        self.assertEqual(len(self.losses(run)), 6)
        saved = sorted(tag.name for tag in (run / "checkpoints").iterdir())
        self.assertEqual(saved, ["m--step=2.ckpt", "m--step=6-last.ckpt", "m--step=6.ckpt"])
        at_end = self.train(
            self.dir / "end", steps, *SAVES, "--fault", "disk:full@step=6", returncode=7
        )
        self.assertIn("the last checkpoint was not saved", at_end.stderr)
        without = self.train(
            self.dir / "without", steps, "--fault", "disk:full@step=4", returncode=2
        )
        self.assertIn("expected a run that saves checkpoints", without.stderr)

    def test_the_log_says_what_was_saved_and_how_long_a_recovery_takes(self):
        run = self.dir / "run"
        for verbose in ("true", "false"):
            params = PARAMS.replace("{monitor", f"{{verbose: {verbose}, monitor")
            result = self.train(run / verbose, "trainer.max_steps=2", SAVES[0], params)
            said = "checkpoint of step 2 saved" in result.stderr
            self.assertEqual(said, verbose == "true")
        for asked in ("true", "false"):
            result = self.train(
                run / f"rest_{asked}",
                "trainer.max_steps=3",
                f"exp_manager.resume_from_checkpoint={run}/true/checkpoints",
                f"exp_manager.enable_recovery_time_instrumentation={asked}",
            )
            said = "weights and states loaded in " in result.stderr
            self.assertEqual(said, asked == "true")

    def test_nothing_to_resume(self):
        folder = self.dir / "none"
        result = self.train(folder, "exp_manager.resume_if_exists=true", returncode=2)
        self.assertIn("has no complete checkpoint", result.stderr)
        self.train(
            folder,
            "exp_manager.resume_if_exists=true",
            "exp_manager.resume_ignore_no_checkpoint=true",
            "trainer.max_steps=1",
        )

    def test_init_from_takes_the_weights_alone(self):
        whole, tuned = self.dir / "whole", self.dir / "tuned"
        self.train(whole, "trainer.max_steps=2", *SAVES)
        self.train(
            tuned, "trainer.max_steps=1", "--init-from", f"{whole}/checkpoints/m--step=2.ckpt"
        )
        self.assertEqual(list(self.losses(tuned)), [1])


class Zero1Dcp(Case):
    """States of ZeRO-1 as a folder of torch.distributed.checkpoint (`use_zero1_dcp`)."""

    DCP = ["exp_manager.use_zero1_dcp=true", "exp_manager.async_checkpointing=true"]
    DATA_PARALLEL = [
        "distributed_strategy.tensor_model_parallel_size=1",
        "distributed_strategy.pipeline_model_parallel_size=1",
        "distributed_strategy.sequence_parallel=false",
    ]

    def saved(self, name, *args):
        folder = self.dir / name
        self.train(folder, "trainer.max_steps=2", *SAVES, *args)
        return folder / "checkpoints/m--step=2.ckpt"

    def test_pytorch_reads_what_the_files_by_rank_have(self):
        import torch
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        plain = self.saved("plain", "exp_manager.save_xser=false") / "optim"
        dcp = self.saved("dcp", *self.DCP) / "optim"
        self.assertEqual(
            sorted(path.name for path in dcp.iterdir()),
            [".metadata", *(f"__{rank}_0.distcp" for rank in range(8))],
        )
        dcp_to_torch_save(dcp, self.dir / "whole.pt")
        whole = torch.load(self.dir / "whole.pt", weights_only=True)
        compared = 0
        for pp in range(2):
            for tp in range(2):
                name = f"_tp_rank_{tp:02}_pp_rank_{pp:02}.pt"
                files = [
                    torch.load(plain / f"dp_rank_{dp:02}{name}", weights_only=True)
                    for dp in range(2)
                ]
                for group in files[0]["param_groups"]:
                    for number, parameter in zip(group["params"], group["param_names"]):
                        states = whole["base_state"][parameter]
                        rows = files[0]["shape_info"][number][0]
                        for state in ("exp_avg", "exp_avg_sq"):
                            shards = [file["base_state"][number][state] for file in files]
                            got = states[f"{state}|pp-{pp:04}|tp-{tp:04}"]
                            self.assertTrue(torch.equal(got, torch.cat(shards)[:rows]), parameter)
                            compared += 1
                        self.assertEqual(states["step"], 2)
                if pp == tp == 0:
                    # torch's planner makes texts of the keys of dicts.
                    shapes = {int(number): size for number, size in whole["shape_info"].items()}
                    self.assertEqual(shapes, files[0]["shape_info"])
                    self.assertEqual(whole["param_groups"], files[0]["param_groups"])
        keys = sum(len(states) - 1 for states in whole["base_state"].values())
        self.assertEqual(compared, keys)

    def test_data_parallel_4_goes_on_with_2_as_from_files_by_rank(self):
        losses = []
        for name, more in (("plain", []), ("dcp", self.DCP)):
            saved = self.saved(name, "trainer.devices=4", *self.DATA_PARALLEL, *more)
            self.assertEqual((saved / "optim/.metadata").exists(), name == "dcp")
            self.train(
                self.dir / f"{name}2",
                "trainer.max_steps=6",
                "trainer.devices=2",
                *self.DATA_PARALLEL,
                f"exp_manager.resume_from_checkpoint={saved}",
            )
            losses.append(self.losses(self.dir / f"{name}2"))
            self.checkpoint("verify", saved)
        self.assertEqual(sorted(losses[0]), [3, 4, 5, 6])
        self.assertEqual(losses[0], losses[1])
        metadata = self.dir / "dcp/checkpoints/m--step=2.ckpt/optim/.metadata"
        metadata.write_bytes(metadata.read_bytes()[:-1] + b"!")
        result = self.checkpoint("verify", metadata.parents[1], returncode=2)
        self.assertIn("optim/.metadata", result.stdout)


class GatheredStates(Case):
    """dist_ckpt_parallel_dist_opt: false on the emulated device, whose ranks send each other what
    they have."""

    def test_the_file_of_the_first_rank_has_the_states_of_all(self):
        saved = {}
        for parallel in ("true", "false"):
            log = f"exp_manager.explicit_log_dir={self.dir / parallel}"
            key = f"model.dist_ckpt_parallel_dist_opt={parallel}"
            config = SOURCE / "examples/quickstart.yaml"
            options = [*SMALL[:-2], *SAVES, f"data.train_dir={self.text}", "trainer.max_steps=2"]
            result = subprocess.run(
                [TRELLIS, "train", config, *options, log, key],
                capture_output=True,
                text=True,
                cwd=self.dir,
                timeout=300,
            )
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])
            saved[parallel] = self.dir / parallel / "checkpoints/m--step=2.ckpt"
        files = {key: len(list((tag / "optim").iterdir())) for key, tag in saved.items()}
        self.assertEqual(files, {"true": 8, "false": 4})
        self.assertIn(": 0 differ", self.checkpoint("diff", *saved.values()).stdout)
        self.checkpoint("verify", saved["false"])


class KilledSaves(Case):
    """SIGKILL at random points of a save, and of the removal of the checkpoint before."""

    MOMENTS, SEED, STEPS = 3, 5, 4  # benchmarks/cli/killed_saves.py: 20 moments
    SAVING = [
        f"trainer.max_steps={STEPS}",
        "trainer.devices=4",
        "distributed_strategy.pipeline_model_parallel_size=1",
        "exp_manager.create_checkpoint_callback=true",
        "exp_manager.save_xser=true",  # many files
        "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1, "
        "save_last: false, every_n_train_steps: 1, filename: 'm--{step}'}",
    ]

    def test_the_last_complete_checkpoint_loads_and_the_rest_goes(self):
        expected = self.whole_run()
        chance = random.Random(self.SEED)
        for moment in range(self.MOMENTS):
            with self.subTest(moment=moment):
                self.killed_save(self.dir / f"cut{moment}", chance, expected)

    def whole_run(self):
        """Its final state. Measures how long a save takes."""
        whole = self.dir / "whole"
        self.train(whole, *self.SAVING)
        last = whole / f"checkpoints/m--step={self.STEPS}.ckpt"
        times = [(last / name).stat().st_mtime for name in ("checkpoint", "done")]
        self.save_seconds = max(times[1] - times[0], 0.01)
        return self.final_state(whole)

    def final_state(self, run):
        manifest = run / f"checkpoints/m--step={self.STEPS}.ckpt/manifest.json"
        files = json.loads(manifest.read_text())["content"]["files"]
        del files["user_content.pt"]  # the configuration, and so the run's own folder
        return files

    def killed_save(self, cut, chance, expected):
        """Which save was killed, and whether something of it was left."""
        folder, step = cut / "checkpoints", chance.randrange(2, self.STEPS)
        process = subprocess.Popen(
            list(map(str, self.command(cut, *self.SAVING))),
            cwd=self.dir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (folder / f"m--step={step}.ckpt-unfinished").exists():
            self.assertIsNone(process.poll(), "it ended before it was killed")
            time.sleep(0.0005)
        # The removal of the one before takes as long again.
        time.sleep(chance.uniform(0, 1.5 * self.save_seconds))
        process.kill()
        process.wait()
        left = list(folder.glob("*-unfinished"))
        listed = json.loads(self.checkpoint("list", folder, "--json").stdout)["checkpoints"]
        self.assertGreaterEqual(listed[-1]["step"], step - 1)
        for each in listed:
            self.checkpoint("verify", folder / each["tag"])
        self.train(cut, *self.SAVING, "exp_manager.resume_if_exists=true")
        first = listed[-1]["step"] + 1
        self.assertEqual(list(self.losses(cut)), list(range(first, self.STEPS + 1)))
        self.assertEqual(self.final_state(cut), expected)
        kept = {path.name for path in folder.iterdir()}
        last = {f"m--step={self.STEPS}-last.ckpt"}
        self.assertEqual(kept | last, last | {f"m--step={self.STEPS}.ckpt"})
        if first <= self.STEPS:  # else a kill before the copy, of a training that had ended
            self.assertLessEqual(last, kept)
        return step, bool(left)


class Verbs(Case):
    def test_list_inspect_and_verify(self):
        run = self.dir / "run"
        self.train(run, "trainer.max_steps=2", *SAVES)
        folder = run / "checkpoints"
        listed = json.loads(self.checkpoint("list", folder, "--json").stdout)["checkpoints"]
        self.assertEqual([row["step"] for row in listed], [2, 2])  # one, and its -last copy
        self.assertEqual({row["layout"]["tp"] for row in listed}, {2})
        tag = folder / listed[0]["tag"]
        self.assertIn(listed[0]["tag"], self.checkpoint("list", folder).stdout)

        shown = json.loads(self.checkpoint("inspect", tag, "--json").stdout)
        on_disk = {str(f.relative_to(tag)) for f in tag.rglob("*") if f.is_file()}
        self.assertEqual(
            {file["path"] for file in shown["files"]},
            on_disk - {"checkpoint", "done", "manifest.json"},
        )
        embedding = [t for t in shown["tensors"] if "embed" in t["key"] and "state" not in t["key"]]
        self.assertEqual({t["shape"][1] for t in embedding if len(t["shape"]) == 2}, {32})
        self.assertIn("embed", self.checkpoint("inspect", tag).stdout)

        self.assertIn(": 0 damaged", self.checkpoint("verify", tag).stdout)
        victim = sorted(tag.glob("model/*.pt"))[0]
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        found = self.checkpoint("verify", tag, returncode=2).stdout
        self.assertIn(f"model/{victim.name}: expected the checksum", found)
        victim.unlink()
        self.assertIn("is missing", self.checkpoint("verify", tag, returncode=2).stdout)

    def test_diff_compares_tensors_of_any_two_layouts(self):
        one, other = self.dir / "one", self.dir / "other"
        self.train(one, "trainer.max_steps=2", *SAVES)
        self.train(
            other,
            "trainer.max_steps=2",
            "distributed_strategy.tensor_model_parallel_size=1",
            "distributed_strategy.pipeline_model_parallel_size=1",
            "model.make_vocab_size_divisible_by=16",  # the padding of two tensor-parallel ranks
            *SAVES,
        )
        a, copy = sorted((one / "checkpoints").iterdir())[:2]
        b = sorted((other / "checkpoints").iterdir())[0]
        self.assertIn(": 0 differ", self.checkpoint("diff", a, copy).stdout)
        # Both trained the same model: every tensor is in both, and differs by rounding at most.
        close = self.checkpoint("diff", a, b, "--weights-only", "--tolerance", "0.02")
        self.assertIn(": 0 differ", close.stdout)
        found = json.loads(self.checkpoint("diff", a, b, "--json", returncode=5).stdout)
        self.assertEqual({row["difference"] for row in found["differences"]}, {"values"})

    def test_other_folders_are_named(self):
        result = self.checkpoint("inspect", self.dir, returncode=2)
        self.assertIn("is no checkpoint of a known format", result.stderr)
        self.assertIn("found text.txt", result.stderr)
        self.assertIn("holds no complete checkpoint", self.checkpoint("list", self.dir).stdout)


if __name__ == "__main__":
    sys.exit(unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2))
