#!/usr/bin/env python3
"""Checkpoints whose bytes are not what was saved: refused by loads, reshard and verify, or one line
says that it cannot be seen. A run whose newest checkpoint is damaged goes on from an older one."""

import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

import torch

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
SMALL = [
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_attention_heads=4",
    "model.num_kv_heads=2",
    "model.encoder_seq_length=16",
    "data.global_batch_size=8",
    "data.micro_batch_size=1",
    "precision.type=fp32",
    "trainer.devices=2",
    "distributed_strategy.tensor_model_parallel_size=2",
    "distributed_strategy.pipeline_model_parallel_size=1",
]
SAVES = [
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: -1, "
    "save_last: false, every_n_train_steps: 1, filename: 'm--{step}'}",
]
UNSEEN = "damage of what is read cannot be seen"


def flip(file, at):
    with open(file, "r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


def records(file, least=1):
    """Where the contents of a zip archive's records lie: (offset, length)."""
    found = []
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name, extra = struct.unpack_from("<HH", content, info.header_offset + 26)
            begin = info.header_offset + 30 + name + extra
            if "/data/" in info.filename and info.file_size >= least:
                found.append((begin, info.file_size))
    return found


def entries(file, least=64):
    """The same of a data file of DCP, which is archives one after the other."""
    content, found, at = file.read_bytes(), [], 0
    while (at := content.find(b"PK\x03\x04", at)) >= 0:
        name, extra = struct.unpack_from("<HH", content, at + 26)
        begin = at + 30 + name + extra
        end = content.index(b"PK\x07\x08", begin)
        if b"/data/" in content[at + 30 : at + 30 + name] and end - begin >= least:
            found.append((begin, end - begin))
        at = end
    return found


class DamageCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.shared = pathlib.Path(temporary.name)
        cls.run_trellis(
            *("train", QUICKSTART, *SMALL, *SAVES, "trainer.max_steps=2", "--device", "cpu"),
            "model.dist_ckpt_format=torch_dist",
            f"exp_manager.explicit_log_dir={cls.shared / 'run'}",
        )
        cls.saved = cls.shared / "run/checkpoints/m--step=2.ckpt"

    @classmethod
    def run_trellis(cls, *args, returncode=0, cwd=None, environment=None):
        result = subprocess.run(
            [str(TRELLIS), *map(str, args)],
            capture_output=True,
            text=True,
            cwd=cwd or cls.shared,
            env={**os.environ, **(environment or {})},
            timeout=300,
        )
        assert result.returncode == returncode, (
            f"{args}: {result.returncode}\n" + result.stdout + result.stderr[-3000:]
        )
        return result

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def copy(self, name, source=None):
        return pathlib.Path(shutil.copytree(source or self.saved, self.dir / name))

    def verify(self, folder, *options, returncode=0):
        return self.run_trellis(
            "checkpoint", "verify", folder, *options, returncode=returncode
        ).stdout

    def convert(self, folder, *options, to="native", returncode=0):
        out = self.dir / "out"
        shutil.rmtree(out, ignore_errors=True)
        return self.run_trellis(
            *("checkpoint", "convert", folder, *options, "--to", to, "--out", out),
            returncode=returncode,
        ).stderr

    def train(self, *options, returncode=0, **more):
        result = self.run_trellis(
            *("train", QUICKSTART, *SMALL, "--device", "cpu", *options),
            returncode=returncode,
            cwd=self.dir,
            **more,
        )
        return result.stderr


class OtherFormats(DamageCase):
    def test_files_of_nxd(self):
        folder = self.copy("copy")
        for ours in ("manifest.json", "iter_0000002", "latest_checkpointed_iteration.txt"):
            path = folder / ours
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        config = ["--config", QUICKSTART, *SMALL]
        self.convert(folder, *config)
        self.assertIn(": 0 damaged", self.verify(folder))
        # The other rank's files have copies of norms, which a conversion does not read.
        files = sorted(folder.glob("*/*tp_rank_00*.pt"))
        chance = random.Random(1)
        for number in range(8):
            file = files[number % len(files)]
            begin, length = chance.choice(records(file, least=64))
            at = begin + chance.randrange(length)
            flip(file, at)
            with self.subTest(file=file.name, at=at):
                self.assertIn("checksum differs", self.convert(folder, *config, returncode=2))
                self.assertIn(file.name, self.verify(folder, returncode=2))
                if number == 0:
                    resume = f"exp_manager.resume_from_checkpoint={folder}"
                    self.assertIn(file.name, self.train(resume, returncode=2))
            flip(file, at)

    def test_megatron_core(self):
        folder = self.copy("copy", self.saved / "iter_0000002")
        self.convert(folder, to="full")
        chance = random.Random(2)
        for _ in range(8):
            file = chance.choice([f for f in sorted(folder.glob("*.distcp")) if entries(f)])
            begin, length = chance.choice(entries(file))
            at = begin + chance.randrange(length)
            flip(file, at)
            with self.subTest(file=file.name, at=at):
                self.assertIn(file.name, self.convert(folder, to="full", returncode=2))
                self.assertIn(file.name, self.verify(folder, returncode=2))
            flip(file, at)
        self.verify(folder)

    def test_safetensors_with_and_without_a_manifest(self):
        hub = self.dir / "hub"
        self.run_trellis("checkpoint", "export-hf", self.saved, "--out", hub)
        start = ["--init-from", hub, "trainer.max_steps=1"]
        self.assertIn(UNSEEN, self.train(*start))
        said = self.verify(hub)
        self.assertIn("have no checksums, so damage in them cannot be seen", said)
        self.assertIn("model.safetensors", said)
        self.verify(hub, "--write-manifest")
        self.assertIn(": 0 damaged", self.verify(hub))
        self.assertNotIn(UNSEEN, self.train(*start))
        weights = hub / "model.safetensors"
        flip(weights, weights.stat().st_size - 100)
        self.assertIn("model.safetensors: expected the checksum", self.verify(hub, returncode=2))
        for error in (
            self.train(*start, returncode=2),
            self.convert(hub, "--config", QUICKSTART, *SMALL, returncode=2),
        ):
            self.assertIn("is not what trellis_manifest.json says", error)

    def test_records_without_checksums(self):
        whole = self.dir / "whole.pt"
        torch.serialization.set_crc32_options(False)
        try:
            torch.save({"w": torch.ones(5, 5)}, whole)
        finally:
            torch.serialization.set_crc32_options(True)
        with zipfile.ZipFile(whole) as archive:
            has_none = all(
                info.CRC == 0 for info in archive.infolist() if "/data/" in info.filename
            )
        if has_none:
            self.assertIn("have no checksums", self.verify(whole))
        torch.save({"w": torch.ones(5, 5)}, whole)
        self.assertNotIn("no checksums", self.verify(whole))


class Verify(DamageCase):
    def test_the_half_of_torch_dist(self):
        self.assertIn(": 0 damaged", self.verify(self.saved))
        folder = self.copy("copy")
        half = [p for p in folder.rglob("*") if p.is_file() and "iter_" in str(p)]
        half.append(folder / "latest_checkpointed_iteration.txt")
        self.assertGreaterEqual(len(half), 6)
        for file in half:
            content = file.read_bytes()
            for harm, bad in (
                (
                    "flip",
                    content[: len(content) // 2]
                    + bytes([content[len(content) // 2] ^ 1])
                    + content[len(content) // 2 + 1 :],
                ),
                ("cut", content[:-1]),
                ("deletion", None),
            ):
                file.unlink() if bad is None else file.write_bytes(bad)
                with self.subTest(file=file.name, harm=harm):
                    self.assertIn(file.name, self.verify(folder, returncode=2))
                file.write_bytes(content)
        self.verify(folder)

    def test_that_of_a_checkpoint_whose_manifest_does_not_list_it(self):
        """As checkpoints were before: records have checksums, and the parts name each other."""
        folder = self.copy("copy")
        self.forget(folder, lambda path: path.startswith(("iter_", "latest_")))
        self.assertIn("no checksums", self.verify(folder))  # .metadata, metadata.json
        data = max(folder.glob("iter_*/*.distcp"), key=lambda path: path.stat().st_size)
        begin, length = entries(data)[0]
        flip(data, begin + length // 2)
        self.assertIn(data.name, self.verify(folder, returncode=2))
        flip(data, begin + length // 2)
        (folder / "iter_0000002/metadata.json").unlink()
        self.assertIn("iter_0000002", self.verify(folder, returncode=2))

    def forget(self, folder, is_forgotten):
        """Takes files out of the manifest, whose own hash is over its content."""
        import xxhash

        path = folder / "manifest.json"
        content = json.loads(path.read_text())["content"]
        content["files"] = {k: v for k, v in content["files"].items() if not is_forgotten(k)}
        text = json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        digest = xxhash.xxh3_128(text.encode()).hexdigest()
        path.write_text(f'{{"content":{text},"xxh3_128":"{digest}"}}\n')

    def test_marks(self):
        folder = self.copy("copy")
        for mark in ("checkpoint", "done"):
            (folder / mark).write_text("")
            self.assertIn(f'{mark}: expected "1"', self.verify(folder, returncode=2))
            (folder / mark).write_text("1")
        self.verify(folder)


class Steps(DamageCase):
    def test_the_step_travels_through_one_file(self):
        self.convert(self.saved, to="full")
        whole = (self.dir / "out/checkpoint.pt").rename(self.dir / "whole.pt")
        self.convert(whole, "--config", QUICKSTART, *SMALL)
        resume = [f"exp_manager.resume_from_checkpoint={self.dir / 'out'}", "trainer.max_steps=3"]
        self.assertIn("step 2 is done", self.train(*resume, *SAVES))
        # Another program writes it again: no one says the step any more.
        torch.save(torch.load(whole, weights_only=True), whole)
        self.convert(whole, "--config", QUICKSTART, *SMALL)
        self.assertIn("does not say after which step", self.train(*resume, returncode=2))
        self.train("--init-from", self.dir / "out", "trainer.max_steps=1")


class DamagedNewest(DamageCase):
    def damaged_run(self):
        run = self.dir / str(len(list(self.dir.iterdir())))
        shutil.copytree(self.shared / "run", run)
        # The copy that is made at the end, then the last numbered one, is the newest.
        newest = run / "checkpoints/m--step=2-last.ckpt"
        file = next(newest.glob("model/*.pt"))
        begin, length = records(file, least=64)[0]
        flip(file, begin + length // 2)
        options = [*SAVES, "trainer.max_steps=3", f"exp_manager.explicit_log_dir={run}"]
        return run, newest, options

    def test_by_hand_it_is_refused_with_the_command_for_the_older_one(self):
        run, newest, options = self.damaged_run()
        error = self.train(*options, "--resume", returncode=2)
        self.assertIn("is not what was saved", error)
        (line,) = [line for line in error.splitlines() if "resume_from_checkpoint=" in line]
        self.assertTrue(line.endswith(f"resume_from_checkpoint={run}/checkpoints/m--step=2.ckpt"))
        self.assertTrue(newest.exists())
        done = subprocess.run(line, shell=True, cwd=self.dir, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 2 is done", done.stderr)

    def test_a_start_that_no_one_watches_steps_back(self):
        for options in (
            ["exp_manager.resume_if_exists=true"],
            ["--resume", "--attempt", "2"],
        ):
            with self.subTest(options=options):
                run, newest, more = self.damaged_run()
                error = self.train(*more, *options)
                self.assertIn("it is kept as m--step=2-last.ckpt.damaged", error)
                self.assertIn("m--step=2.ckpt: loaded; step 2 is done", error)
                self.assertFalse(newest.exists())
                self.assertTrue(newest.with_name(newest.name + ".damaged").exists())

    def test_what_cannot_be_read_as_this_model_stays(self):
        run = self.dir / "run"
        shutil.copytree(self.shared / "run", run)
        self.train(
            *(*SAVES, f"exp_manager.explicit_log_dir={run}", "model.hidden_size=64"),
            "exp_manager.resume_if_exists=true",
            returncode=2,
        )
        self.assertFalse(list(run.glob("checkpoints/*.damaged")))


class SharedFolder(DamageCase):
    def test_runs_that_save_into_one_folder_remove_their_own(self):
        place = self.dir / "all"
        params = (
            f"exp_manager.checkpoint_callback_params={{dirpath: {place}, monitor: step, mode: max, "
            "save_top_k: 1, save_last: false, every_n_train_steps: 1, filename: '%s-{step}'}"
        )
        for name in ("a", "b"):
            error = self.train(
                *("exp_manager.create_checkpoint_callback=true", params % name),
                *("trainer.max_steps=3", f"exp_manager.explicit_log_dir={self.dir / name}"),
            )
            self.assertIn(f"{name}-step=2.ckpt: removed: save_top_k is 1", error)
        kept = sorted(path.name for path in place.iterdir() if path.is_dir())
        expected = [f"{n}-step=3{end}.ckpt" for n in ("a", "b") for end in ("-last", "")]
        self.assertEqual(kept, expected)
        # Started again it goes on, and is the same run.
        self.train(
            *("exp_manager.create_checkpoint_callback=true", params % "b"),
            *("trainer.max_steps=4", f"exp_manager.explicit_log_dir={self.dir / 'b'}"),
            "exp_manager.resume_if_exists=true",
        )
        kept = sorted(path.name for path in place.iterdir() if path.is_dir())
        expected[2:] = ["b-step=4-last.ckpt", "b-step=4.ckpt"]
        self.assertEqual(kept, expected)


if __name__ == "__main__":
    sys.exit(unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2))
