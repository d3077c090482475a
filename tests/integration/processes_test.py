"""One training in several processes: what they compute is what threads compute, bit for bit."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from cli_case import QUICKSTART, SHORT, SOURCE, TRELLIS, Case

TORCHRUN = SOURCE / ".venv/bin/torchrun"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ProcessesCase(Case):
    def arguments(self, log, *more):
        return [
            str(TRELLIS),
            "train",
            str(QUICKSTART),
            *SHORT,
            "trainer.max_steps=3",
            f"exp_manager.explicit_log_dir={self.dir / log}",
            *map(str, more),
        ]

    def environment(self, rank, processes, port):
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }

    def start(self, processes, log, *more, each=lambda rank: []):
        """As torchrun would, without its agent."""
        port = free_port()
        return [
            subprocess.Popen(
                [*self.arguments(log, *more), *each(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.dir,
                env={
                    **os.environ,
                    "TRELLIS_CACHE": "off",
                    **self.environment(rank, processes, port),
                },
            )
            for rank in range(processes)
        ]

    def ends(self, jobs):
        """(exit code, stdout, stderr) of each."""
        results = []
        self.addCleanup(lambda: [job.kill() for job in jobs])
        for job in jobs:
            out, err = job.communicate(timeout=120)
            results.append((job.returncode, out, err))
        return results

    def wait_for_a_step(self, log):
        metrics = self.dir / log / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not metrics.exists() or not metrics.read_text():
            self.assertLess(time.monotonic(), deadline, "the first step never came")
            time.sleep(0.05)

    def losses(self, log):
        lines = (self.dir / log / "metrics.jsonl").read_text().splitlines()
        keys = ("step", "loss", "lr", "grad_norm")
        return [[json.loads(line)[key] for key in keys] for line in lines]


class EqualsThreads(ProcessesCase):
    """TP 2 × PP 2 × DP 2 with sequence parallelism and ZeRO-1."""

    def check(self, processes, device, *more):
        log = f"{device}{processes}"
        results = self.ends(self.start(processes, log, "--device", device, *more))
        for code, _, err in results:
            self.assertEqual(code, 0, err[-3000:])
        self.assertTrue(results[0][1], "the first process prints the report")
        for _, out, err in results[1:]:
            self.assertEqual((out, err), ("", ""), "the others are quiet")
        return log

    def test_losses_are_those_of_threads_bit_for_bit(self):
        threads = self.trellis(*self.arguments("threads", "--device", "cpu")[1:])
        self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
        for processes, device in ((2, "cpu"), (8, "cpu"), (4, "neuron")):
            with self.subTest(processes=processes, device=device):
                log = self.check(processes, device)
                self.assertEqual(self.losses(log), self.losses("threads"))
                logs = sorted((self.dir / log).glob("nemo_log_globalrank-*"))
                self.assertEqual(len(logs), 8, "each rank has its log")

    def test_reports_are_equal(self):
        threads = self.trellis(*self.arguments("threads", "--device", "cpu")[1:])
        self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
        log = self.check(2, "cpu")
        reports = [
            json.loads((self.dir / run / "report.json").read_text()) for run in ("threads", log)
        ]
        self.assertEqual(reports[0], reports[1])


class Launchers(ProcessesCase):
    def test_torchrun(self):
        command = [
            TORCHRUN,
            "--nproc-per-node",
            "2",
            "--master-port",
            str(free_port()),
            "--no-python",
        ]
        result = subprocess.run(
            [*map(str, command), *self.arguments("run", "--device", "cpu")],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=280,
            env={**os.environ, "TRELLIS_CACHE": "off"},
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertEqual(len(self.losses("run")), 3)

    @unittest.skipUnless(shutil.which("mpirun"), "Open MPI is not installed")
    def test_mpirun(self):
        result = subprocess.run(
            [
                *("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"),
                *("-x", f"MASTER_PORT={free_port()}"),
                *self.arguments("run", "--device", "cpu"),
            ],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=280,
            env={**os.environ, "TRELLIS_CACHE": "off"},
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertEqual(len(self.losses("run")), 3)


class Failures(ProcessesCase):
    def test_a_killed_process_is_named_and_ends_the_others(self):
        jobs = self.start(4, "run", "--device", "cpu", "trainer.max_steps=100000")
        self.wait_for_a_step("run")
        jobs[2].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        results = self.ends(jobs)
        self.assertLess(time.monotonic() - killed, 30)
        for rank in (0, 1, 3):
            code, _, err = results[rank]
            self.assertEqual(code, 1, err[-2000:])
            self.assertIn("process 2 (ranks 4 to 5) ended without a word", err)

    def test_sigterm_on_any_process_stops_all_at_one_step(self):
        jobs = self.start(2, "run", "--device", "cpu", "trainer.max_steps=100000")
        self.wait_for_a_step("run")
        jobs[1].send_signal(signal.SIGTERM)
        for code, _, err in self.ends(jobs):
            self.assertEqual(code, 130, err[-2000:])
        self.assertTrue((self.dir / "run/report.json").exists())

    def test_different_configurations_are_refused(self):
        jobs = self.start(2, "run", "--device", "cpu", each=lambda rank: [f"seed={rank + 1}"])
        for code, _, err in self.ends(jobs):
            self.assertEqual(code, 2, err[-2000:])
            self.assertIn("processes of one job differ in their seed", err)

    def test_an_error_before_the_first_step_ends_all(self):
        began = time.monotonic()
        missing = self.dir / "nowhere"
        jobs = self.start(2, "run", "--device", "cpu", f"data.train_dir={missing}")
        results = self.ends(jobs)
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(results[0][0], 2, results[0][2])
        self.assertIn(str(missing), results[0][2])
        self.assertEqual(results[1][0], 1, results[1][2])
        self.assertIn("process 0", results[1][2])

    def test_what_works_in_one_process_only_is_refused_by_name(self):
        env = self.environment(0, 2, free_port())
        result = self.train(
            "exp_manager.create_checkpoint_callback=true", "--device", "cpu", env=env
        )
        self.fails(result, 2, "create_checkpoint_callback", "one process")

    def test_ranks_that_cannot_be_shared_out(self):
        result = self.train("--device", "cpu", env=self.environment(0, 3, free_port()))
        self.fails(result, 2, "3 processes", "divides the 8 ranks")

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            env = self.environment(0, 2, taken.getsockname()[1])
            result = self.train("--device", "cpu", "--timeout", "5", env=env)
        self.fails(result, 2, "cannot listen at 127.0.0.1", "MASTER_PORT")

    def test_a_process_that_never_comes(self):
        env = self.environment(0, 2, free_port())
        result = self.train("--device", "cpu", "--timeout", "2", env=env)
        self.fails(result, 2, "process 1 of 2 did not come")


if __name__ == "__main__":
    unittest.main()
