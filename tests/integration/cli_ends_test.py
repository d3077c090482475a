#!/usr/bin/env python3
"""How runs end: Ctrl-C, errors in the logs of the ranks. Environment: TRELLIS, the program."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

from cli_case import QUICKSTART, SOURCE, TRELLIS, Case


class Ends(Case):
    def test_interrupt_ends_cleanly_with_valid_files(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            run = self.dir / number.name
            process = subprocess.Popen(
                [
                    TRELLIS,
                    "train",
                    QUICKSTART,
                    "trainer.max_steps=100000",
                    f"exp_manager.explicit_log_dir={run}",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.dir,
            )
            metrics = run / "metrics.jsonl"
            end = time.monotonic() + 120
            while time.monotonic() < end and not (
                metrics.exists() and metrics.read_text().count("\n") >= 2
            ):
                time.sleep(0.1)
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 130, err[-2000:])
            report = json.loads((run / "report.json").read_text())
            self.assertTrue(report["interrupted"])
            self.assertIn("(interrupted)", out)
            self.assertEqual(list(self.dir.rglob("*.partial")), [])
            ended = f"training ended after step {report['steps']}: interrupted"
            logs = list(run.glob("nemo_log_globalrank-*.txt"))
            self.assertEqual(len(logs), 8)
            for log in (*logs, run / "lightning_logs.txt"):
                self.assertEqual(log.read_text().count(ended), 1, log)

    def test_interrupted_simulation_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            run = self.dir / f"simulate_{number.name}"
            run.mkdir()
            (run / "mine.txt").write_text("of the user")
            process = subprocess.Popen(
                [
                    TRELLIS,
                    "simulate",
                    SOURCE / "examples/llama3_8b_trn1.yaml",
                    f"exp_manager.explicit_log_dir={run}",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.dir,
                env={**os.environ, "TRELLIS_CACHE": "off"},
            )
            end = time.monotonic() + 120
            while time.monotonic() < end and not (run / "hparams.yaml").exists():
                time.sleep(0.02)
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 130, err[-2000:])
            self.assertEqual(out, "")
            self.assertIn("nothing of this run is kept", err)
            self.assertEqual([path.name for path in run.iterdir()], ["mine.txt"])

    def test_switches_of_rank_logs_act(self):
        for name, switches, ranks in (
            ("all", [], range(8)),
            ("local", ["exp_manager.log_local_rank_0_only=true"], [0, 4]),
            ("global", ["exp_manager.log_global_rank_0_only=true"], [0]),
        ):
            result = self.train(
                "--device", "cpu", "trainer.devices=4", "trainer.num_nodes=2", *switches, log=name
            )
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            logs = {
                log.name: log.read_text()
                for log in (self.dir / name).glob("nemo_log_globalrank-*.txt")
            }
            self.assertEqual(
                set(logs), {f"nemo_log_globalrank-{r}_localrank-{r % 4}.txt" for r in ranks}
            )
            for log in logs.values():
                self.assertEqual(log.count("training ended after step 2: max_steps"), 1)
            self.assertEqual(
                logs["nemo_log_globalrank-0_localrank-0.txt"].count("rank 0: run directory: "), 1
            )
            self.assertEqual((self.dir / name / "nemo_error_log.txt").read_text(), "")
            steps = (self.dir / name / "lightning_logs.txt").read_text()
            for text in ("step    1/2", "step    2/2", "training ended after step 2: max_steps"):
                self.assertEqual(steps.count(text), 1, text)

    def test_an_error_is_in_the_error_log_with_its_rank(self):
        result = self.train(
            "--device",
            "cpu",
            "model.optim.lr=1e30",
            "trainer.max_steps=20",
            "exp_manager.log_global_rank_0_only=true",
        )
        self.assertEqual(result.returncode, 2, result.stderr[-2000:])
        self.assertRegex(
            (self.dir / "run/nemo_error_log.txt").read_text(),
            r"error\] rank \d+: step \d+: (the loss|the norm of the gradients) is -?(nan|inf)",
        )


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
