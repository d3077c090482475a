"""One training in several processes: what they compute is what threads compute, bit for bit."""

import json
import os
import pathlib
import resource
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
    INDEX = "RANK"  # the launcher's variable

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
            self.INDEX: str(rank),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }

    def start(self, processes, log, *more, each=lambda rank: [], limits=None, folders=None):
        """As torchrun would, without its agent. limits: of the size of a file [bytes], by process;
        folders: where each process starts."""
        port = free_port()
        limits, folders = limits or {}, folders or {}
        for folder in folders.values():
            (self.dir / folder).mkdir(parents=True, exist_ok=True)

        def limit_files(rank):
            if rank in limits:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limits[rank],) * 2)

        return [
            subprocess.Popen(
                [*self.arguments(log, *more), *each(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.dir / folders.get(rank, ""),
                preexec_fn=lambda rank=rank: limit_files(rank),
                env={
                    **os.environ,
                    "TRELLIS_CACHE": "off",
                    **self.environment(rank, processes, port),
                },
            )
            for rank in range(processes)
        ]

    def torchrun_command(self, log, *more, restarts=0):
        return [
            str(TORCHRUN),
            *("--nproc-per-node", "2", "--max-restarts", str(restarts)),
            *("--monitor-interval", "0.2", "--master-port", str(free_port()), "--no-python"),
            *self.arguments(log, "--device", "cpu", *more),
        ]

    def torchrun(self, log, *more, restarts=0):
        return subprocess.run(
            self.torchrun_command(log, *more, restarts=restarts),
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=280,
            env={**os.environ, "TRELLIS_CACHE": "off"},
        )

    def start_agent(self, log, *more):
        """torchrun, which starts a failed job once again."""
        agent = subprocess.Popen(
            self.torchrun_command(log, *more, *RESUMES, restarts=1),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.dir,
            env={**os.environ, "TRELLIS_CACHE": "off"},
        )
        self.addCleanup(agent.kill)
        return agent

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


class ManyRanks(ProcessesCase):
    """More ranks than LibTorch has device indices, which are the processes' own."""

    LAYOUT = (
        *("trainer.num_nodes=7", "trainer.devices=32", "data.global_batch_size=224"),
        *("model.num_layers=2", "data.seq_length=32", "model.encoder_seq_length=32"),
        *("trainer.max_steps=1", "--timeout", "200"),
    )

    def test_two_processes_of_112_ranks_equal_224_threads(self):
        threads = self.train("--device", "cpu", *self.LAYOUT, log="threads")
        self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
        for code, _, err in self.ends(self.start(2, "run", "--device", "neuron", *self.LAYOUT)):
            self.assertEqual(code, 0, err[-3000:])
        self.assertEqual(self.losses("run"), self.losses("threads"))
        report = json.loads((self.dir / "run/report.json").read_text())
        self.assertEqual(len(report["memory"]["ranks"]), 224)

    def test_one_process_says_how_many_are_needed(self):
        alone = self.train("--device", "neuron", *self.LAYOUT, log="alone")
        self.assertEqual(alone.returncode, 2)
        self.assertIn("expected 1 to 127 ranks in one process, got 224", alone.stderr)
        self.assertIn("start more processes", alone.stderr)


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

    def test_reports_metrics_and_traces_are_those_of_threads_byte_for_byte(self):
        for device, processes in (("cpu", 2), ("neuron", 4)):
            with self.subTest(device=device):
                threads = self.trellis(*self.arguments("threads", "--device", device)[1:])
                self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
                log = self.check(processes, device)
                names = {"report.json", "metrics.jsonl"}
                if device == "neuron":
                    names |= {"trace.pftrace", "portability.json"}
                    report = json.loads((self.dir / log / "report.json").read_text())
                    self.assertGreater(report["simulated"]["step_time_ps"], 0)
                    self.assertEqual(len(report["memory"]["ranks"]), 8)
                for name in names:
                    files = [(self.dir / run / name).read_bytes() for run in ("threads", log)]
                    self.assertTrue(files[0] == files[1], name)
                shutil.rmtree(self.dir / "threads")


class Launchers(ProcessesCase):
    def test_torchrun(self):
        result = self.torchrun("run")
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertEqual(len(self.losses("run")), 3)

    @unittest.skipUnless(shutil.which("mpirun"), "Open MPI is not installed")
    def test_mpirun(self):
        result = subprocess.run(
            [
                *("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "8"),
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


class Kubernetes(ProcessesCase):
    """The environment of an indexed job's containers."""

    INDEX = "JOB_COMPLETION_INDEX"

    def test_an_indexed_job_equals_threads(self):
        threads = self.trellis(*self.arguments("threads", "--device", "cpu")[1:])
        self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
        for code, _, err in self.ends(self.start(2, "run", "--device", "cpu")):
            self.assertEqual(code, 0, err[-3000:])
        self.assertEqual(self.losses("run"), self.losses("threads"))


SAVES = [
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: -1, "
    "save_last: true, every_n_train_steps: 2, filename: 'm--{step}'}",
]
RESUMES = ["exp_manager.resume_if_exists=true", "exp_manager.resume_ignore_no_checkpoint=true"]


def contents_of(folder):
    """Of every file. user_content.pt holds the configuration, and so the run's own folder."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents[str(path.relative_to(folder))] = path.read_bytes()
        if path.name == "user_content.pt":
            contents[str(path.relative_to(folder))] = b""
        if path.name == "manifest.json":
            manifest = json.loads(path.read_text())["content"]
            del manifest["files"]["user_content.pt"]  # its hash
            del manifest["run"]  # each run has its name
            contents[str(path.relative_to(folder))] = manifest
    return contents


class Checkpoints(ProcessesCase):
    """Processes save what threads save, byte for byte, and go on from what anyone saved."""

    def threads(self, log, *more):
        result = self.trellis(*self.arguments(log, "--device", "cpu", *more)[1:])
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])

    def processes(self, count, log, *more, code=0):
        results = self.ends(self.start(count, log, "--device", "cpu", *more))
        for got, _, err in results:
            self.assertEqual(got, code, err[-3000:])
        return results

    def test_folders_are_those_of_threads(self):
        self.threads("threads", "trainer.max_steps=4", *SAVES)
        expected = contents_of(self.dir / "threads/checkpoints")
        self.assertIn("m--step=4.ckpt/done", expected)
        for count, more in (
            (2, []),
            (8, ["exp_manager.async_checkpointing=true"]),
            (
                4,
                [
                    "exp_manager.save_xser=false",
                    "model.dist_ckpt_format=torch_dist",
                    "exp_manager.use_zero1_dcp=true",
                    "exp_manager.async_checkpointing=true",
                ],
            ),
            (
                4,
                [
                    "exp_manager.save_xser=true",
                    "model.dist_ckpt_parallel_dist_opt=false",
                ],
            ),
        ):
            with self.subTest(processes=count, more=more):
                if "model.dist_ckpt_parallel_dist_opt=false" in more:
                    self.threads("gathered", "trainer.max_steps=4", *SAVES, *more)
                    expected = contents_of(self.dir / "gathered/checkpoints")
                elif more and "xser" in more[0]:
                    self.threads("plain", "trainer.max_steps=4", *SAVES, *more)
                    expected = contents_of(self.dir / "plain/checkpoints")
                    self.assertIn("m--step=4.ckpt/iter_0000004/metadata.json", expected)
                    self.assertIn("m--step=4.ckpt/optim/.metadata", expected)
                log = f"processes{count}_{len(more)}"
                self.processes(count, log, "trainer.max_steps=4", *SAVES, *more)
                got = contents_of(self.dir / log / "checkpoints")
                self.assertEqual(got.keys(), expected.keys())
                for path, content in expected.items():
                    self.assertTrue(got[path] == content, path)

    def test_any_number_of_processes_goes_on_from_any(self):
        self.threads("whole", "trainer.max_steps=6")
        self.processes(4, "part", "trainer.max_steps=2", *SAVES)
        for count in (2, 8):
            log = f"rest{count}"
            self.processes(
                count,
                log,
                "trainer.max_steps=6",
                f"exp_manager.resume_from_checkpoint={self.dir}/part/checkpoints",
            )
            self.assertEqual(self.losses(log), self.losses("whole")[2:])

    def test_weights_of_another_format_start_any_number_of_processes(self):
        self.processes(4, "part", "trainer.max_steps=2", *SAVES)
        (checkpoint,) = (self.dir / "part/checkpoints").glob("m--step=2.ckpt")
        converted = self.trellis(
            *("checkpoint", "convert", checkpoint, "--to", "full"),
            *("--out", self.dir / "full", "--weights-only"),
        )
        self.assertEqual(converted.returncode, 0, converted.stderr[-2000:])
        begins = ("trainer.max_steps=2", "--init-from", self.dir / "full")
        self.threads("threads", *begins)
        self.processes(4, "started", *begins)
        self.assertEqual(self.losses("started"), self.losses("threads"))

    def test_modes_of_strictness_count_the_weights_of_all_processes(self):
        """Each process has one stage of the pipeline: weights of the other are not missing."""
        import torch

        self.threads("part", "trainer.max_steps=1", *SAVES)
        (checkpoint,) = (self.dir / "part/checkpoints").glob("*-last.ckpt")
        whole = self.dir / "whole.pt"
        converted = self.trellis(
            *("checkpoint", "convert", checkpoint, "--to", "full", "--weights-only", "--out", whole)
        )
        self.assertEqual(converted.returncode, 0, converted.stderr[-2000:])
        weights = torch.load(whole, weights_only=True)
        weights["model.layers.0.other.weight"] = weights.pop("model.norm.weight")
        torch.save(weights, whole)
        texts = {
            "whole.pt: has no model.": "whole.pt: has no model.norm.weight",
            "no rank asks for": "no rank asks for model.layers.0.other.weight",
        }
        begins = ("trainer.max_steps=1", "precision.type=fp32", "--init-from", whole)
        for mode, code in (("raise_all", 2), ("log_all", 0)):
            with self.subTest(mode):
                strictness = f"model.dist_ckpt_load_strictness={mode}"
                found = self.processes(2, mode, *begins, strictness, code=code)
                said = "".join(error for _, _, error in found)
                for start, text in texts.items():
                    self.assertIn(text, said)
                    self.assertEqual(said.count(text), said.count(start), said)
        self.assertEqual(len(self.losses("log_all")), 1)

    def test_sigterm_on_any_process_saves_in_all_and_exits_0(self):
        jobs = self.start(4, "run", "--device", "cpu", "trainer.max_steps=100000", *SAVES)
        self.wait_for_a_step("run")
        jobs[2].send_signal(signal.SIGTERM)
        for code, _, err in self.ends(jobs):
            self.assertEqual(code, 0, err[-2000:])
        step = self.losses("run")[-1][0]
        last = list((self.dir / "run/checkpoints").glob("*-last.ckpt/manifest.json"))
        self.assertEqual([json.loads(file.read_text())["content"]["step"] for file in last], [step])

    def test_torchrun_starts_again_after_a_kill(self):
        self.threads("whole", "trainer.max_steps=30")
        agent = self.start_agent("run", "trainer.max_steps=30", *SAVES)
        checkpoints = self.dir / "run/checkpoints"
        deadline = time.monotonic() + 120
        while not list(checkpoints.glob("*.ckpt/done")):
            self.assertLess(time.monotonic(), deadline, "the first checkpoint never came")
            time.sleep(0.02)
        children = pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text()
        os.kill(int(children.split()[-1]), signal.SIGKILL)
        _, err = agent.communicate(timeout=240)
        self.assertEqual(agent.returncode, 0, err[-3000:])
        before = self.losses("run/run_0")
        after = self.losses("run")
        self.assertGreater(after[0][0], 2, "the second start goes on from a checkpoint")
        whole = self.losses("whole")
        self.assertEqual(before, whole[: len(before)])
        self.assertEqual(after, whole[after[0][0] - 1 :])

    def test_a_process_that_cannot_write_ends_all_and_the_checkpoint_is_none(self):
        for mode in ("false", "true"):
            log = f"async_{mode}"
            with self.subTest(asynchronous=mode):
                jobs = self.start(
                    2,
                    log,
                    *("--device", "cpu", *SAVES, f"exp_manager.async_checkpointing={mode}"),
                    limits={1: 2048},
                )
                results = self.ends(jobs)
                self.assertEqual(results[1][0], 7, results[1][2])
                self.assertIn("File too large", results[1][2])
                self.assertNotEqual(results[0][0], 0)
                self.assertIn("File too large", results[0][2])
                self.assertEqual(list((self.dir / log / "checkpoints").glob("*/done")), [])

    def test_processes_that_find_different_checkpoints_are_refused(self):
        self.threads("part", "trainer.max_steps=2", *SAVES)
        (self.dir / "here").mkdir()
        jobs = self.start(
            2,
            "run",
            *("--device", "cpu", "exp_manager.resume_from_checkpoint=../part/checkpoints"),
            folders={0: "here", 1: "there/deeper"},
        )
        results = self.ends(jobs)
        self.assertEqual(results[1][0], 2, results[1][2])


class Faults(ProcessesCase):
    """What goes wrong on purpose is found and named, and a job that starts again ends well."""

    def test_a_killed_job_ends_with_the_losses_of_a_whole_one(self):
        whole = self.trellis(*self.arguments("whole", "--device", "cpu", "trainer.max_steps=8")[1:])
        self.assertEqual(whole.returncode, 0, whole.stderr[-2000:])
        fault = ("--fault", "kill:rank=5@step=6")
        result = self.torchrun("run", "trainer.max_steps=8", *SAVES, *RESUMES, *fault, restarts=1)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertEqual(self.losses("run/run_0")[-1][0], 5)
        self.assertEqual(self.losses("run"), self.losses("whole")[4:])

    def test_preemption_saves_and_out_of_memory_is_named(self):
        fault = ("--fault", "preempt:rank=4@step=2", "trainer.max_steps=100000")
        jobs = self.start(2, "run", "--device", "cpu", *SAVES, *fault)
        for code, _, err in self.ends(jobs):
            self.assertEqual(code, 0, err[-2000:])
        # The other process may have begun the next step when it learns of the signal.
        self.assertIn(len(self.losses("run")), (2, 3))
        result = self.train("--device", "cpu", "--fault", "oom:rank=3@step=2", log="oom")
        self.fails(result, 3, "out of device memory on rank 3 at step 2")

    def test_a_flipped_bit_is_found_with_its_weight_and_rank(self):
        weight = "model.embed_tokens.weight"
        for device in ("cpu", "neuron"):
            log = f"flip_{device}"
            result = self.train(
                *("--device", device, "trainer.max_steps=4", "--check-replicas", "1"),
                *("distributed_strategy.pipeline_model_parallel_size=1",),
                *("--fault", f"flip:{weight}:rank=3@step=2"),
                log=log,
            )
            self.fails(result, 5, "step 2: copies of weights differ", f"{weight} on rank 3", "1, 3")
            self.assertEqual(len(self.losses(log)), 1)
        whole = self.train("--device", "cpu", "trainer.max_steps=4", "--check-replicas", "1")
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_without_copies_there_is_nothing_to_compare(self):
        result = self.train(
            *("--device", "cpu", "--check-replicas", "1", "trainer.devices=2"),
            *("distributed_strategy.pipeline_model_parallel_size=1",),
        )
        self.fails(result, 2, "--check-replicas", "no rank holds a copy")

    def test_faults_that_cannot_be(self):
        for fault, words in (
            ("kill:rank=8@step=1", ("rank from 0 to 7", "got 8")),
            ("kill:rank=4294967296@step=1", ("rank from 0 to 7", "got 4294967296")),
            ("kill:rank=a@step=1", ("expected kill",)),
            ("kill@step=9", ("step from 1 to 2", "got 9")),
            ("kill", ("no step",)),
            ("melt@step=1", ("unknown kind", "melt")),
            ("flip@step=1", ("flip:WEIGHT",)),
            ("flip:model.embed_token.weight@step=1", ("did you mean model.embed_tokens.weight",)),
        ):
            with self.subTest(fault=fault):
                self.fails(self.train("--device", "cpu", "--fault", fault), 2, "--fault", *words)


class Mixtures(ProcessesCase):
    def test_losses_and_routed_tokens_are_those_of_threads(self):
        arguments = ["model.moe={num_experts: 4, top_k: 2, dropless: true}"]
        arguments += ["distributed_strategy.expert_model_parallel_size=2", "--device", "cpu"]
        threads = self.trellis(*self.arguments("threads", *arguments)[1:])
        self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
        results = self.ends(self.start(4, "processes", *arguments))
        for code, _, err in results:
            self.assertEqual(code, 0, err[-3000:])
        self.assertEqual(self.losses("processes"), self.losses("threads"))
        reports = [
            json.loads((self.dir / run / "report.json").read_text())
            for run in ("threads", "processes")
        ]
        self.assertTrue(reports[0]["routing"])
        self.assertEqual(reports[0], reports[1])


class Pairs(ProcessesCase):
    def test_dpo_is_that_of_threads(self):
        arguments = [
            "model_alignment_strategy={dpo: {kl_beta: 0.1, max_prompt_length: 24}}",
            f"data.train_dir={SOURCE}/examples/alignment/preferences.jsonl",
            "data.tokenizer={library: byte-level}",
            *("data.seq_length=128", "model.encoder_seq_length=128"),
            *("--device", "cpu"),
        ]
        threads = self.trellis(*self.arguments("threads", *arguments)[1:])
        self.assertEqual(threads.returncode, 0, threads.stderr[-2000:])
        results = self.ends(self.start(4, "processes", *arguments))
        for code, _, err in results:
            self.assertEqual(code, 0, err[-3000:])
        self.assertEqual(self.losses("processes"), self.losses("threads"))
        pairs = [(self.dir / run / "reference_log_probs.json") for run in ("threads", "processes")]
        self.assertEqual(*[file.read_bytes() for file in pairs])


if __name__ == "__main__":
    unittest.main()
