#!/usr/bin/env python3
"""Checkpoints that are only in S3, of whose requests every twentieth fails: a training is killed,
goes on from them elsewhere, and they are resharded."""

import json
import logging
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "tests/trainer/checkpoint"))

import boto3  # noqa: E402
import moto.server  # noqa: E402
from failing_proxy import failing_proxy  # noqa: E402

TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
FAILING = 0.05
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}
SMALL = [
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_kv_heads=4",
    "model.encoder_seq_length=16",
    "model.hidden_dropout=0.1",
    "data.global_batch_size=4",
    "data.micro_batch_size=1",
    "precision.type=fp32",
    "trainer.devices=2",
    "distributed_strategy.tensor_model_parallel_size=2",
    "distributed_strategy.pipeline_model_parallel_size=1",
    "--device",
    "cpu",
]
ONE_RANK = ["trainer.devices=1", "distributed_strategy.tensor_model_parallel_size=1"]
STEPS = 10


class S3(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        os.environ.update(ENVIRONMENT)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        self.addCleanup(server.stop)
        port = server.get_host_and_port()[1]
        self.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
        self.client.create_bucket(Bucket="bucket")
        self.proxy, self.failed = failing_proxy(port, FAILING, 1)
        self.addCleanup(self.proxy.server_close)
        self.addCleanup(self.proxy.shutdown)
        self.options = (
            f"?endpoint_override=127.0.0.1:{self.proxy.server_port}&scheme=http&region=us-east-1"
        )

    def at(self, path):
        return f"s3://bucket/{path}{self.options}"

    def trellis(self, *args):
        result = subprocess.run(
            list(map(str, (TRELLIS, *args))),
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr[-3000:])
        return result.stdout

    def training(self, host, *args):
        """Its local files are in the folder `host`."""
        return [
            "train",
            SOURCE / "examples/quickstart.yaml",
            *SMALL,
            f"trainer.max_steps={STEPS}",
            f"exp_manager.explicit_log_dir={self.dir / host}",
            *args,
        ]

    def saving(self, prefix, keep=2, every=2):
        return (
            "exp_manager.create_checkpoint_callback=true",
            "exp_manager.checkpoint_callback_params={monitor: step, mode: max, "
            f"save_top_k: {keep}, every_n_train_steps: {every}, filename: 'm--{{step}}', "
            f"dirpath: '{self.at(prefix)}'}}",
        )

    def losses(self, host):
        rows = (self.dir / host / "metrics.jsonl").read_text().splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, rows)}

    def complete(self, prefix):
        """Names of the checkpoints that the program takes as complete, the newest last."""
        listed = json.loads(self.trellis("checkpoint", "list", self.at(prefix), "--json"))
        return sorted(listed["checkpoints"], key=lambda each: each["step"])

    def objects(self, prefix):
        found = self.client.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
        return [each["Key"] for each in found]

    def kill_while_it_saves(self, prefix):
        process = subprocess.Popen(
            list(map(str, (TRELLIS, *self.training("first", *self.saving(prefix))))),
            cwd=self.dir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.kill)
        while True:
            self.assertIsNone(process.poll(), "it ended before it was killed")
            objects = self.objects(prefix)
            done = sum(key.endswith("/done") for key in objects)
            if done >= 2 and any("-unfinished" in key for key in objects):
                break
            time.sleep(0.01)
        process.kill()
        process.wait()

    def test_a_killed_training_goes_on_and_its_checkpoints_are_resharded(self):
        self.trellis(*self.training("whole"))
        self.kill_while_it_saves("run")
        found = self.complete("run")
        self.assertTrue(found)
        for each in found:
            self.trellis("checkpoint", "verify", self.at(f"run/{each['tag']}"))
        newest = found[-1]
        resume = f"exp_manager.resume_from_checkpoint={self.at('run/' + newest['tag'])}"
        self.trellis(*self.training("second", *self.saving("run"), resume))
        expected = {s: loss for s, loss in self.losses("whole").items() if s > newest["step"]}
        self.assertEqual(self.losses("second"), expected)
        resharded = self.at("resharded.ckpt")
        source = self.at(f"run/{self.complete('run')[-1]['tag']}")
        self.trellis("checkpoint", "reshard", source, *ONE_RANK, "--out", resharded)
        self.trellis("checkpoint", "diff", source, resharded)
        self.assertEqual([key for key in self.objects("") if "-unfinished" in key], [])
        self.assertGreater(len(self.failed), 20)

    def in_processes(self, count, host, *args):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = [
            subprocess.Popen(
                list(map(str, (TRELLIS, *self.training(host, f"trainer.devices={count}", *args)))),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.dir,
                env={**os.environ, **job, "RANK": str(rank)},
            )
            for rank in range(count)
        ]
        self.addCleanup(lambda: [process.kill() for process in processes])
        for process in processes:
            _, err = process.communicate(timeout=200)
            self.assertEqual(process.returncode, 0, err[-3000:])

    def test_processes_read_each_byte_of_a_checkpoint_once(self):
        self.proxy.share = 0
        steps = "trainer.max_steps=4"
        self.trellis(*self.training("whole", "trainer.devices=4", steps))
        saved = ("trainer.devices=4", "trainer.max_steps=2")
        self.trellis(*self.training("saves", *self.saving("once"), *saved))
        checkpoint = self.complete("once")[-1]
        folder = f"once/{checkpoint['tag']}"
        self.proxy.read.clear()
        resume = f"exp_manager.resume_from_checkpoint={self.at(folder)}"
        self.in_processes(4, "rest", resume, steps)
        expected = {s: loss for s, loss in self.losses("whole").items() if s > 2}
        self.assertEqual(self.losses("rest"), expected)
        found = self.client.list_objects_v2(Bucket="bucket", Prefix=folder)["Contents"]
        weights = {
            o["Key"]: o["Size"] for o in found if o["Key"].split("/")[-2] in ("model", "optim")
        }
        self.assertGreater(len(weights), 4)
        self.assertEqual({key: self.proxy.read[f"/bucket/{key}"] for key in weights}, weights)

    def test_a_second_run_is_refused_while_the_first_one_lives(self):
        self.proxy.share = 0
        saving = self.saving("both", every=1000000)  # the first run never saves, however fast
        first = subprocess.Popen(
            list(map(str, (TRELLIS, *self.training("a", *saving, "trainer.max_steps=1000000")))),
            cwd=self.dir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(first.kill)

        def leases():
            keys = self.objects("both/.trellis.lease/")
            return [key for key in keys if not key.endswith("/")]

        while not leases():
            self.assertIsNone(first.poll(), "it ended")
            time.sleep(0.05)
        second = subprocess.run(
            list(map(str, (TRELLIS, *self.training("b", *saving)))),
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=100,
        )
        self.assertEqual(second.returncode, 2, second.stderr)
        self.assertIn("another process saves there now: process ", second.stderr)
        self.assertIn(f"exp_manager.explicit_log_dir={self.dir / 'a'}", second.stderr)
        first.kill()
        first.wait()
        self.assertEqual(len(leases()), 1)
        start = time.monotonic()
        self.trellis(*self.training("b", *saving))
        self.assertLess(time.monotonic() - start, 50, "a process that has ended is not waited for")
        self.assertEqual(leases(), [])
        self.assertEqual([each["step"] for each in self.complete("both")], [STEPS])

    def test_a_stop_after_any_change_leaves_the_last_complete_checkpoint(self):
        """What the bucket holds after each upload and deletion of a training is what a process
        that ends there leaves."""
        states, contents = [], {}

        def changed():
            found = self.client.list_objects_v2(Bucket="bucket", Prefix="stops/")
            found = found.get("Contents", [])
            state = {o["Key"]: o["ETag"] for o in found if not o["Key"].endswith("/")}
            for key, tag in state.items():
                if (key, tag) not in contents:
                    got = self.client.get_object(Bucket="bucket", Key=key)
                    contents[key, tag] = got["Body"].read()
            if not states or states[-1] != state:
                states.append(state)

        self.proxy.share, self.proxy.changed = 0, changed
        saving = (*self.saving("stops", keep=1, every=1), "trainer.max_steps=3")
        self.trellis(*self.training("run", *saving))
        newest, partial, verified = 0, 0, set()
        for number, state in enumerate(states):
            folder = self.dir / f"after{number}"
            for key, tag in state.items():
                file = folder / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(contents[key, tag])
            listed = json.loads(self.trellis("checkpoint", "list", folder / "stops", "--json"))
            listed = {each["tag"]: each["step"] for each in listed["checkpoints"]}
            self.assertGreaterEqual(max(listed.values(), default=0), newest, number)
            newest = max(listed.values(), default=0)
            partial += any(key.endswith("-unfinished") for key in state)
            for name in listed:
                files = frozenset(each for each in state.items() if f"/{name}/" in each[0])
                if files not in verified:
                    self.trellis("checkpoint", "verify", folder / "stops" / name)
                verified.add(files)
        self.assertEqual(newest, 3)
        self.assertGreater(partial, 20)


if __name__ == "__main__":
    unittest.main()
