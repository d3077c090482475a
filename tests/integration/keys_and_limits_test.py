#!/usr/bin/env python3
"""What keys do in the program itself: logging periods, NxDT's own forms, early stopping; and what
it says when the host's memory is too small."""

import json
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def train(self, *args, address_space=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        return subprocess.run(
            [
                TRELLIS,
                "train",
                QUICKSTART,
                "--device",
                "cpu",
                f"exp_manager.explicit_log_dir={self.dir / 'run'}",
                *args,
            ],
            cwd=self.dir,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "TRELLIS_CACHE": "off"},
            preexec_fn=limit if address_space else None,
        )

    def metrics(self):
        return [
            json.loads(line) for line in (self.dir / "run/metrics.jsonl").read_text().splitlines()
        ]


class Keys(Case):
    def test_log_every_n_steps_is_the_period_of_console_and_tensorboard(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        result = self.train(
            "trainer.max_steps=8", "trainer.log_every_n_steps=3", "trainer.track_grad_norm=inf"
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        events = EventAccumulator(str(self.dir / "run"))
        events.Reload()
        steps = [1, 3, 6, 8]
        for tag in ("reduced_train_loss", "lr", "throughput", "grad_inf_norm_total"):
            self.assertEqual([event.step for event in events.Scalars(tag)], steps, tag)
        self.assertEqual(
            [line.split()[1] for line in result.stderr.splitlines() if line.startswith("step ")],
            [f"{step}/8" for step in steps],
        )
        self.assertEqual(
            [row["step"] for row in self.metrics()],
            list(range(1, 9)),
            "metrics.jsonl holds every step",
        )
        self.assertTrue(
            all(0 < row["grad_inf_norm_total"] <= row["grad_norm"] for row in self.metrics())
        )

    def test_a_run_without_max_steps_ends_by_time_but_not_before_min_steps(self):
        result = self.train(
            "trainer.max_steps=-1", "trainer.max_time={seconds: 0.01}", "trainer.min_steps=3"
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        self.assertEqual([row["step"] for row in self.metrics()], [1, 2, 3])
        self.assertIn("step    1  loss", result.stderr)

    def test_early_stopping_monitors_what_only_the_program_knows(self):
        on = "exp_manager.create_early_stopping_callback=true"
        params = "exp_manager.early_stopping_callback_params"
        result = self.train(
            "trainer.max_steps=20",
            on,
            params + "={monitor: throughput, min_delta: 1.0e+9, patience: 2, mode: max}",
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        self.assertEqual(len(self.metrics()), 3)
        self.assertIn("early stopping after step 3: throughput", result.stderr)
        result = self.train("trainer.max_steps=20", on, params + ".monitor=mfu")
        self.assertEqual(result.returncode, 2)
        self.assertIn("step 1 logs no mfu: simulated numbers need --device neuron", result.stderr)


class HostMemory(Case):
    """RLIMIT_AS limits the process on every machine alike."""

    def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(self):
        began = time.monotonic()
        result = self.train(
            "model.hidden_size=8192",
            "model.ffn_hidden_size=32768",
            "model.num_layers=64",
            address_space=24 << 30,
        )
        self.assertEqual(result.returncode, 3, result.stderr[-2000:])
        self.assertLess(time.monotonic() - began, 20)
        self.assertRegex(
            result.stderr,
            r"needs at least [0-9.]+ [GT]iB for 8 ranks \(weights .*\), but [0-9.]+ [GM]iB are "
            r"available",
        )
        for verb in ("`trellis simulate`", "`trellis memory`"):
            self.assertIn(verb, result.stderr)
        self.assertFalse((self.dir / "run").exists())

    def test_a_failed_allocation_ends_every_rank(self):
        """The need is a lower bound: with just that much the run starts, and an allocation
        fails."""
        model = ["model.hidden_size=1024", "model.ffn_hidden_size=4096", "trainer.max_steps=2"]
        limit = 5 << 30
        refusal = self.train(*model, "model.num_layers=1000", address_space=limit).stderr
        available = self.bytes_of(refusal, r"but ([0-9.]+) ([KMGT]iB) are available")
        need = self.bytes_of(
            self.train(*model, address_space=limit - available + (64 << 20)).stderr,
            r"needs at least ([0-9.]+) ([KMGT]iB)",
        )
        began = time.monotonic()
        result = self.train(*model, address_space=int(limit - available + 1.05 * need))
        self.assertEqual(result.returncode, 3, result.stderr[-2000:])
        self.assertRegex(
            result.stderr, r"error: rank \d: the host has no memory left: .*; `trellis simulate`"
        )
        self.assertNotIn("internal error", result.stderr)
        self.assertLess(time.monotonic() - began, 60)

    def bytes_of(self, text, pattern):
        match = re.search(pattern, text)
        self.assertIsNotNone(match, text[-2000:])
        return int(float(match[1]) * 1024 ** ("KMGT".index(match[2][0]) + 1))


if __name__ == "__main__":
    unittest.main()
