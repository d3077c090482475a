"""What goes wrong on purpose: dumps for PyTorch's analyzer, restarts, slow and broken machines."""

import json
import os
import pathlib
import pickle
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from cli_case import QUICKSTART, SHORT, CheckedCase
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from processes_test import SAVES, ProcessesCase

BLOCKED = r"blocked: rank ([\d, ]+) in .* at trainer/"
ANALYZER = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]


class FlightRecorder(ProcessesCase):
    """Each rank's dump is in PyTorch's format: its own analyzer names the rank that is missing."""

    def dumps(self, log):
        folder = self.dir / log / "flight_recorder"
        return {path.name: pickle.loads(path.read_bytes()) for path in sorted(folder.iterdir())}

    def analysis(self, log, *more):
        result = subprocess.run(
            [*ANALYZER, str(self.dir / log / "flight_recorder"), *more],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return result.stdout + result.stderr

    def open_slices(self, log):
        """By track and rank: names of slices that did not end, by Perfetto's own classes."""
        trace = pb.Trace.FromString((self.dir / log / "trace_of_the_end.pftrace").read_bytes())
        names, tracks, opened = {}, {}, {}
        for packet in trace.packet:
            part = packet.trusted_packet_sequence_id
            for entry in packet.interned_data.event_names:
                names[part, entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                process = track.process.process_name or tracks[track.parent_uuid][1]
                tracks[track.uuid] = (track.name, process)
            if packet.HasField("track_event"):
                event = packet.track_event
                stack = opened.setdefault(tracks[event.track_uuid], [])
                if event.type == event.TYPE_SLICE_BEGIN:
                    stack.append(names[part, event.name_iid])
                elif event.type == event.TYPE_SLICE_END:
                    stack.pop()
        return {track: stack for track, stack in opened.items() if stack}

    def check_trace(self, log, missing):
        slices = self.open_slices(log)
        waiting = {rank for track, rank in slices if track == "communications"}
        self.assertNotIn(f"rank {missing}", waiting)
        self.assertGreaterEqual(len(waiting), 5, slices)
        ends = {rank: names for (track, rank), names in slices.items() if track == "at the end"}
        self.assertEqual(len(ends), 8)
        self.assertIn("runs outside any communication", ends[f"rank {missing}"][0])

    def check_form(self, dump):
        self.assertEqual(dump["version"], "2.10")
        self.assertTrue(dump["entries"])
        records = [entry["record_id"] for entry in dump["entries"]]
        self.assertEqual(records, sorted(set(records)))
        for entry in dump["entries"]:
            frame = entry["frames"][0]
            self.assertTrue(frame["filename"].startswith("trainer/"), frame)
            self.assertGreater(frame["line"], 0)
            name, kind = entry["process_group"]
            self.assertEqual(dump["pg_config"][name]["desc"], kind)
            self.assertIn(entry["state"], ("completed", "started"))
            self.assertLessEqual(
                entry["time_created_ns"], entry["time_discovered_completed_ns"] or float("inf")
            )
        self.assertTrue(dump["pg_status"])

    def test_the_analyzer_names_the_rank_that_hangs(self):
        result = self.train(
            *("--device", "cpu", "--timeout", "2", "trainer.max_steps=4"),
            *("--fault", "hang:rank=3@step=3"),
        )
        self.fails(result, 4, "communication hang", "flight_recorder", "fr_trace")
        dumps = self.dumps("run")
        self.assertEqual(sorted(dumps), [f"rank_{rank}" for rank in range(8)])
        for dump in dumps.values():
            self.check_form(dump)
        text = self.analysis("run")
        self.assertIn("Not all ranks joining collective", text)
        self.assertIn("missing ranks: {3}", text)
        # Each blocked rank with its communication, layer and line; the trace shows them.
        text = result.stderr
        self.assertEqual(text.count("communication hang"), 1, text)
        self.assertRegex(text, r"bytes, in .*layer=\S+, at trainer/\S+:\d+ \(")
        self.assertRegex(text, r"missing: rank 3, which .*last: ")
        named = {int(r) for r in re.findall(r"\d+", " ".join(re.findall(BLOCKED, text)))}
        self.assertGreaterEqual(len(named), 5, text)
        self.check_trace("run", missing=3)
        # What completed before pairs up: nothing else is reported of step 1 and 2.
        last = max(entry["step"] for entry in dumps["rank_3"]["entries"])
        self.assertEqual(last, 2)

    def test_processes_write_theirs(self):
        jobs = self.start(
            4,
            "run",
            *("--device", "cpu", "--timeout", "3", "trainer.max_steps=4"),
            *("--fault", "hang:rank=5@step=2"),
        )
        ended = self.ends(jobs)
        for code, _, err in ended:
            self.assertEqual(code, 4, err[-2000:])
            self.assertEqual(err.count("communication hang"), 1, "each process of two ranks")
        self.assertEqual(len(self.dumps("run")), 8)
        self.assertIn("missing ranks: {5}", self.analysis("run"))
        text = "".join(err for _, _, err in ended)
        self.assertRegex(text, r"missing: rank 5, which runs outside any communication since")
        self.assertRegex(text, BLOCKED)
        self.check_trace("run", missing=5)

    def test_a_crash_and_an_exception_leave_dumps(self):
        crash = self.train("--device", "cpu", "--fault", "crash:rank=5@step=2", log="crash")
        self.fails(crash, -signal.SIGSEGV, "signal 11", "flight_recorder")
        memory = self.train("--device", "cpu", "--fault", "oom:rank=1@step=2", log="memory")
        self.fails(memory, 3, "out of device memory on rank 1", "flight_recorder")
        for log in ("crash", "memory"):
            dumps = self.dumps(log)
            self.assertEqual(len(dumps), 8)
            for dump in dumps.values():
                self.check_form(dump)
            self.analysis(log)
            ends = {rank for track, rank in self.open_slices(log) if track == "at the end"}
            self.assertGreaterEqual(len(ends), 7, log)

    def test_a_killed_process_has_none_and_the_others_do(self):
        jobs = self.start(4, "run", "--device", "cpu", "--fault", "kill:rank=2@step=2")
        results = self.ends(jobs)
        self.assertEqual(results[1][0], -signal.SIGKILL)
        dumps = self.dumps("run")
        self.assertEqual(sorted(dumps), [f"rank_{rank}" for rank in (0, 1, 4, 5, 6, 7)])
        self.analysis("run", "--allow-incomplete-ranks")

    def test_a_whole_run_and_wrong_input_write_none(self):
        whole = self.train("--device", "cpu")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertFalse((self.dir / "run/flight_recorder").exists())
        wrong = self.train("--device", "cpu", "--fault", "flip:no.weight@step=1", log="wrong")
        self.assertEqual(wrong.returncode, 2)
        self.assertFalse((self.dir / "wrong/flight_recorder").exists())


class Machine(CheckedCase):
    """--fault slow and down, in simulated time."""

    def report(self, *arguments, verb="simulate", code=0):
        out = self.trellis(
            *(verb, QUICKSTART, *SHORT, "--json", "--no-cache", *arguments), returncode=code
        )
        return json.loads(out.stdout) if code == 0 else out.stderr

    def step(self, *arguments):
        return self.report(*arguments)["simulated"]["step_time_ps"]

    def test_factor_one_is_no_fault_byte_for_byte(self):
        alone = self.report()
        faults = ("--fault", "slow:core=3@1", "--fault", "slow:link=0-1@1")
        self.assertEqual(self.report(*faults), alone)

    def test_a_slower_part_is_never_faster_and_what_it_costs_is_said(self):
        alone = self.step()
        for part in ("core=3", "link=0-1"):
            last = alone
            for factor in ("1.5", "4", "32"):
                report = self.report("--fault", f"slow:{part}@{factor}")
                simulated = report["simulated"]
                self.assertGreaterEqual(simulated["step_time_ps"], last, part)
                self.assertEqual(simulated["without_slow_parts_ps"], alone)
                last = simulated["step_time_ps"]
            self.assertGreater(last, alone)
        self.assertEqual(self.step("--fault", "slow:core=3"), self.step("--slow", "core:3=2"))
        text = self.trellis(
            "simulate", QUICKSTART, *SHORT, "--no-cache", "--fault", "slow:core=3@1.5"
        ).stdout
        self.assertIn("rank 3 takes 1.5 times as long", text)
        self.assertIn("of the step lost", text)

    def test_messages_go_around_a_link_that_is_down(self):
        ring = ("distributed_strategy.tensor_model_parallel_size=4", "trainer.devices=32")
        more = (*ring, "distributed_strategy.pipeline_model_parallel_size=1")
        more += ("data.global_batch_size=32", "model.num_kv_heads=4")
        alone = self.report(*more)
        used = {link["name"] for link in alone["simulated"]["links"]}
        self.assertIn("node0.chip0.neuron_link_east", used)
        down = self.report(*more, "--fault", "down:link=0-1")
        names = {link["name"] for link in down["simulated"]["links"]}
        self.assertNotIn("node0.chip0.neuron_link_east", names)
        self.assertNotIn("node0.chip1.neuron_link_west", names)
        self.assertGreaterEqual(
            down["simulated"]["step_time_ps"], alone["simulated"]["step_time_ps"]
        )
        unfolded = self.report(*more, "--fault", "down:link=0-1", "--no-fold")
        self.assertEqual(unfolded["simulated"]["step_time_ps"], down["simulated"]["step_time_ps"])

    def test_train_has_them_too(self):
        fault = ("--fault", "slow:core=5@3")
        report = self.report(*fault, verb="simulate")
        trained = self.trellis("train", QUICKSTART, *SHORT, "--json", *fault)
        trained = json.loads(trained.stdout)
        self.assertGreater(
            trained["simulated"]["step_time_ps"], trained["simulated"]["without_slow_parts_ps"]
        )
        self.assertEqual(trained["machine"]["slow"], report["machine"]["slow"])

    def test_refusals(self):
        for fault, words in (
            ("slow:core=8@2", ("expected a rank of 0 to 7",)),
            ("slow:core=1@0.5", ("expected a factor of 1",)),
            ("slow:disk=1@2", ("expected slow:core=RANK@FACTOR",)),
            ("down:core=1", ("expected slow:core=RANK@FACTOR",)),
            ("down:link=0-5", ("no link joins chips 0 and 5", "those of chip 0 lead to")),
            ("down:link=0-99", ("expected a chip of 0 to 15",)),
            ("down:link=node0.chip0.host_out", ("has no way around",)),
            ("kill:rank=1@step=1", ("simulate trains nothing",)),
        ):
            with self.subTest(fault=fault):
                text = self.report("--fault", fault, code=2)
                for word in words:
                    self.assertIn(word, text)
        clock = self.trellis(
            *("train", QUICKSTART, "--device", "cpu", "--fault", "slow:core=1"), returncode=2
        )
        self.assertIn("simulated time", clock.stderr)


class Planned(CheckedCase):
    """trellis goodput: the best interval between saves, from the simulated cost of a save."""

    CLUSTER = ("trainer.num_nodes=4", "trainer.devices=8", "data.global_batch_size=32")

    def goodput(self, *more, code=0):
        arguments = ("goodput", QUICKSTART, *SHORT, *self.CLUSTER)
        result = self.trellis(*arguments, *more, returncode=code)
        return result.stderr if code else result.stdout

    def test_a_configuration_and_its_report_give_the_same(self):
        failures = ("--mtbf", "10d", "--failures", "20000")
        direct = json.loads(self.goodput(*failures, "--json"))
        self.assertAlmostEqual(direct["best"]["interval_s"] / direct["daly"]["interval_s"], 1, 1)
        for row in (*direct["points"], direct["best"]):
            parts = ("goodput", "saving", "lost_work", "restarting")
            self.assertAlmostEqual(sum(row[part] for part in parts), 1, 9)
        self.trellis(
            *("simulate", QUICKSTART, *SHORT, *self.CLUSTER, "--checkpoint-every", "50"),
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
        )
        again = self.trellis("goodput", self.dir / "run", *failures, "--json")
        self.assertEqual(json.loads(again.stdout), direct)

    def test_asynchronous_saves_have_another_optimum_with_its_reason(self):
        text = self.goodput(
            *("--mtbf", "1d", "--checkpoint-storage", "fsx", "--failures", "20000"),
            "exp_manager.async_checkpointing=true",
        )
        self.assertIn("saves are asynchronous", text)
        for name in ("best", "Young", "Daly"):
            self.assertIn(name, text)

    def test_refusals(self):
        self.assertIn("--mtbf", self.goodput(code=2))
        self.assertIn("expected a time above 0", self.goodput("--mtbf", "0s", code=2))
        self.assertIn("no run gets ahead", self.goodput("--mtbf", "0.001s", code=2))
        self.trellis(
            *("simulate", QUICKSTART, *SHORT), f"exp_manager.explicit_log_dir={self.dir / 'run'}"
        )
        run = self.trellis("goodput", self.dir / "run", "--mtbf", "1d", returncode=2)
        self.assertIn("--checkpoint-every N", run.stderr)


class Restarts(ProcessesCase):
    """--max-restarts: the final state is that of a run without faults."""

    def whole(self, *more):
        result = self.train("--device", "cpu", "trainer.max_steps=8", *SAVES, *more, log="whole")
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])

    def restarted(self, *more, log="run", code=0):
        result = self.train(*("--device", "cpu", "trainer.max_steps=8", *SAVES, *more), log=log)
        self.assertEqual(result.returncode, code, result.stderr[-3000:])
        return result

    def weights(self, log, step=8):
        folder = self.dir / log / f"checkpoints/m--step={step}.ckpt"
        manifest = json.loads((folder / "manifest.json").read_text())["content"]["files"]
        del manifest["user_content.pt"]  # the configuration, and so the run's own folder
        return manifest

    def test_kill_crash_memory_and_hang_end_with_the_state_of_a_whole_run(self):
        self.whole()
        faults = ("kill:rank=5@step=4", "crash:rank=1@step=6", "oom:rank=2@step=7")
        faults += ("hang:rank=0@step=8",)
        arguments = [word for fault in faults for word in ("--fault", fault)]
        result = self.restarted(*arguments, "--max-restarts", "4", "--timeout", "2")
        self.assertEqual(self.weights("run"), self.weights("whole"))
        whole = self.losses("whole")
        after = self.losses("run")
        self.assertEqual(after, whole[after[0][0] - 1 :])
        for text in (
            "attempt 1 failed (signal 9, Killed) after step 3; restart 1 of 4 from the newest",
            "attempt 2 failed (signal 11, Segmentation fault) after step 5",
            "attempt 3 failed (exit code 3) after step 6",
            "attempt 4 failed (exit code 4) after step 7",
        ):
            self.assertIn(text, result.stderr)
        report = json.loads((self.dir / "run/report.json").read_text())
        self.assertEqual(report["attempt"], 5)
        logs = (self.dir / "run/nemo_log_globalrank-0_localrank-0.txt").read_text()
        self.assertIn("attempt 5 of the run", logs)

    def test_the_number_of_restarts_is_bounded_and_no_progress_pauses(self):
        started = time.monotonic()
        faults = ("--fault", "kill@step=1", "--fault", "kill@step=2", "--fault", "oom@step=3")
        result = self.restarted(*faults, "--max-restarts", "2", code=3)
        self.assertIn("from the beginning in 1 s: it saved nothing new", result.stderr)
        self.assertIn("in 2 s: it saved nothing new", result.stderr)
        self.assertIn("no restart is left of 2", result.stderr)
        self.assertGreater(time.monotonic() - started, 3)

    def test_what_would_fail_again_ends_at_once(self):
        result = self.restarted("--max-restarts", "3", "model.num_layers=0", code=2)
        self.assertNotIn("restart 1", result.stderr)
        result = self.train("--device", "cpu", "--max-restarts", "3", log="none")
        self.fails(result, 2, "create_checkpoint_callback")
        result = self.train("--device", "cpu", "--elastic", log="none")
        self.fails(result, 2, "--max-restarts N")
        result = self.train(
            *("--device", "cpu", "--max-restarts", "3", *SAVES),
            log="none",
            env=self.environment(0, 2, 29500),
        )
        self.fails(result, 2, "torchrun --max-restarts 3")

    def test_fewer_ranks_go_on(self):
        exact = "precision.type=fp64"
        self.whole(exact)
        fault = ("--fault", "kill:rank=5@step=6")
        result = self.restarted(exact, *fault, "--max-restarts", "1", "--elastic")
        self.assertIn("on 4 ranks (data-parallel 2 → 1)", result.stderr)
        report = json.loads((self.dir / "run/report.json").read_text())
        self.assertEqual((report["world_size"], report["data_parallel_size"]), (4, 1))
        for got, expected in zip(self.losses("run"), self.losses("whole")[4:], strict=True):
            self.assertEqual(got[0], expected[0])
            self.assertAlmostEqual(got[1], expected[1], places=10)

    def test_sigterm_reaches_the_child_which_saves_and_ends(self):
        job = subprocess.Popen(
            [
                *self.arguments("run", "--device", "cpu", "trainer.max_steps=100000", *SAVES),
                *("--max-restarts", "3"),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=self.dir,
        )
        self.addCleanup(job.kill)
        self.wait_for_a_step("run")
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=120)
        self.assertEqual(job.returncode, 0, err[-2000:])
        self.assertNotIn("restart", err.replace("--max-restarts", ""))


class Kills(ProcessesCase):
    """SIGKILL of a random rank's process at random moments, started again by torchrun."""

    MOMENTS = int(os.environ.get("TRELLIS_KILLS", "3"))  # benchmarks/cli/random_kills.py: 20
    SEED, STEPS = 26, 12

    def test_the_final_state_is_that_of_a_whole_run(self):
        more = (f"trainer.max_steps={self.STEPS}", *SAVES)
        whole = self.train("--device", "cpu", *more, log="whole")
        self.assertEqual(whole.returncode, 0, whole.stderr[-2000:])
        expected = self.final_state("whole")
        chance = random.Random(self.SEED)
        for moment in range(self.MOMENTS):
            log = f"run{moment}"
            with self.subTest(moment=moment):
                self.killed_run(log, chance, more)
                self.assertEqual(self.final_state(log), expected)

    def final_state(self, log):
        folder = self.dir / log / f"checkpoints/m--step={self.STEPS}.ckpt"
        files = json.loads((folder / "manifest.json").read_text())["content"]["files"]
        del files["user_content.pt"]  # the configuration, and so the run's own folder
        return files

    def steps_before_the_kill(self, log):
        """Of the attempt before the last; 0: the run's folder may not even have been there."""
        files = list((self.dir / log).glob("run_0/metrics.jsonl"))
        return len(files[0].read_text().splitlines()) if files else 0

    def killed_run(self, log, chance, more):
        """Whether the process still ran at that moment."""
        agent = self.start_agent(log, *more)
        victim = self.process_of(agent, chance.randrange(2))
        time.sleep(chance.uniform(0, 3))
        status = pathlib.Path(f"/proc/{victim}/stat")
        was_alive = status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
        if was_alive:  # otherwise the moment is after the run
            os.kill(victim, signal.SIGKILL)
        _, err = agent.communicate(timeout=240)
        self.assertEqual(agent.returncode, 0, err[-3000:])
        return was_alive

    def process_of(self, agent, number):
        path = pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
        deadline = time.monotonic() + 120
        while len(children := path.read_text().split()) < 2:
            self.assertLess(time.monotonic(), deadline, "no processes")
            time.sleep(0.02)
        return int(children[number])


if __name__ == "__main__":
    unittest.main()
