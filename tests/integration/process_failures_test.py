"""What ends a training of several processes: each names the process that did, and leaves."""

import os
import random
import signal
import socket
import time
import unittest

from processes_test import ProcessesCase, free_port


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
            self.assertEqual(code, 4, err[-2000:])
            self.assertIn("process 2 (ranks 4 to 5) ended without a word", err)

    def seconds_without(self, victim, ends, moment=None):
        """Until the others end with exit code 4 and name the ranks of `victim`, which `ends`
        something like SIGSTOP; `moment`: seconds after the start, before the first step too."""
        log = f"run{len(list(self.dir.glob('run*')))}"
        more = ("--device", "cpu", "--timeout", "3", "trainer.max_steps=100000")
        jobs = self.start(4 if moment is None else 2, log, *more)
        if moment is None:
            self.wait_for_a_step(log)
        else:
            time.sleep(moment)
        jobs[victim].send_signal(ends)
        began = time.monotonic()
        others = [job for job in jobs if job is not jobs[victim]]
        results = self.ends(others)
        took = time.monotonic() - began
        jobs[victim].kill()
        jobs[victim].communicate()
        for code, _, err in results:
            self.assertEqual(code, 4, err[-2000:])
            self.assertRegex(err, rf"process {victim}\b|\brank {victim}\b")
        return took

    def test_a_stopped_process_is_named_and_ends_the_others(self):
        for victim in (2, 0):  # process 0 keeps the store and the board
            with self.subTest(victim=victim):
                self.assertLess(self.seconds_without(victim, signal.SIGSTOP), 3 + 5)

    MOMENTS = int(os.environ.get("TRELLIS_MOMENTS", "1"))  # 20: the whole set

    def test_processes_stopped_and_killed_at_random_moments(self):
        chance = random.Random(17)
        for moment in range(self.MOMENTS):
            ends = (signal.SIGSTOP, signal.SIGKILL)[moment % 2]
            victim, after = chance.randrange(2), chance.uniform(0.2, 4)
            with self.subTest(moment=moment, victim=victim, after=after, ends=ends.name):
                self.assertLess(self.seconds_without(victim, ends, after), 10)

    def test_a_second_signal_ends_a_process_that_waits_for_a_stopped_one(self):
        for signals in ((signal.SIGTERM, signal.SIGINT), (signal.SIGHUP, signal.SIGHUP)):
            with self.subTest(signals=signals):
                log = f"run_{signals[0].name}"
                jobs = self.start(2, log, "--device", "cpu", "trainer.max_steps=100000")
                self.wait_for_a_step(log)
                jobs[1].send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                jobs[0].send_signal(signals[0])
                time.sleep(0.5)
                self.assertIsNone(jobs[0].poll(), "it waits for the other one")
                jobs[0].send_signal(signals[1])
                self.assertEqual(jobs[0].wait(timeout=2), -signals[1])
                jobs[1].kill()
                self.ends(jobs)

    def test_sigterm_on_any_process_stops_all_at_one_step(self):
        jobs = self.start(2, "run", "--device", "cpu", "trainer.max_steps=100000")
        self.wait_for_a_step("run")
        jobs[1].send_signal(signal.SIGTERM)
        for code, _, err in self.ends(jobs):
            self.assertEqual(code, 130, err[-2000:])
        self.assertTrue((self.dir / "run/report.json").exists())

    def test_sigquit_prints_what_each_rank_does_and_changes_nothing(self):
        jobs = self.start(2, "run", "--device", "cpu", "trainer.max_steps=20")
        self.wait_for_a_step("run")
        for job in jobs:
            job.send_signal(signal.SIGQUIT)
        for process, (code, _, err) in enumerate(self.ends(jobs)):
            self.assertEqual(code, 0, err[-2000:])
            self.assertIn("what each rank does:", err)
            for rank in range(4 * process, 4 * process + 4):
                self.assertRegex(err, rf"rank {rank}, step \d+: it (runs|waits)")
            self.assertIn("native stack, innermost first:", err)
        self.assertEqual(len(self.losses("run")), 20)

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
        self.fails(result, 4, "process 1 of 2 did not come")

    def test_an_address_that_does_not_resolve(self):
        env = {**self.environment(0, 2, free_port()), "MASTER_ADDR": "no-such-host.invalid"}
        result = self.train("--device", "cpu", "--timeout", "2", env=env)
        self.fails(result, 2, "MASTER_ADDR", "no-such-host.invalid")


if __name__ == "__main__":
    unittest.main()
