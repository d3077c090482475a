#!/usr/bin/env python3
"""The program as its users meet it: good runs, their files, determinism. Environment: TRELLIS, the
program."""

import json
import os
import re
import subprocess
import sys
import unittest

from cli_case import QUICKSTART, SHORT, TRELLIS, Case


class GoodRuns(Case):
    def test_switches_of_logging_act(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for on in ("true", "false"):
            result = self.train(
                "--device",
                "cpu",
                f"trainer.enable_progress_bar={on}",
                f"exp_manager.log_step_timing={on}",
                f"exp_manager.log_gradient_norm={on}",
                f"exp_manager.log_parameter_norm={on}",
                log=on,
            )
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            self.assertEqual("step    1/2" in result.stderr, on == "true")
            events = EventAccumulator(str(self.dir / on))
            events.Reload()
            tags = set(events.Tags()["scalars"])
            self.assertLessEqual(
                {"reduced_train_loss", "lr", "global_step", "consumed_samples", "throughput"}, tags
            )
            switched = {
                "train_step_timing",
                "train_backward_timing",
                "gradient_norm",
                "parameter_norm",
            }
            self.assertEqual(tags & switched, switched if on == "true" else set())

    def test_train_writes_complete_files_and_one_json_document(self):
        result = self.train("--json")
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        report = json.loads(result.stdout)
        self.assertEqual(report["schema"], "trellis.run_report/1")
        self.assertEqual(report, json.loads((self.dir / "run/report.json").read_text()))
        lines = [
            json.loads(line) for line in (self.dir / "run/metrics.jsonl").read_text().splitlines()
        ]
        self.assertEqual([line["step"] for line in lines], [1, 2])
        for name in ("hparams.yaml", "trace.pftrace"):
            self.assertTrue((self.dir / "run" / name).exists(), name)
        portability = json.loads((self.dir / "run/portability.json").read_text())
        self.assertEqual(portability["schema"], "trellis.portability/1")
        lacking = [row for row in portability["operators"] if not row["portable"]]
        self.assertEqual(report["portability"], lacking)
        self.assertIn(
            ("embedding", "int64", "computed in int32 there"),
            [(r["operator"], r["dtype"], r["on_device"]) for r in lacking],
        )
        self.assertTrue(list((self.dir / "run").glob("events.out.tfevents.*")))
        self.assertEqual(list(self.dir.rglob("*.partial")), [])

    def test_trace_is_what_perfetto_reads(self):
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        self.assertEqual(self.train().returncode, 0)
        data = (self.dir / "run/trace.pftrace").read_bytes()
        self.assertLessEqual(len(data), 20_000_000)
        trace = Trace()
        trace.ParseFromString(data)
        descriptors = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
        processes = [d.process.process_name for d in descriptors if d.HasField("process")]
        self.assertTrue(processes[0].startswith("rank 0 (PP 0, DP 0, TP 0)"), processes[0])
        self.assertIn(" (PP 1, ", " ".join(processes))
        ranks = [
            1 + int((re.search(r"and (\d+) equal rank", name) or [0, 0])[1])
            for name in processes
            if name.startswith("rank ")
        ]
        self.assertEqual(sum(ranks), 8, "ranks that did the same at the same times are shown once")
        names = {d.name for d in descriptors}
        self.assertLessEqual(
            {
                "tensor",
                "vector",
                "scalar",
                "DMA load",
                "communication tp",
                "communication pp",
                "communication dp",
                "programs",
            },
            names,
        )
        events = [p.track_event for p in trace.packet if p.HasField("track_event")]
        self.assertTrue(any(e.flow_ids for e in events), "communications are tied by arrows")
        self.assertTrue(any(e.HasField("counter_value") for e in events), "HBM in use is a counter")
        begins = sum(e.type == e.TYPE_SLICE_BEGIN for e in events)
        self.assertGreater(begins, 1000)
        self.assertEqual(begins, sum(e.type == e.TYPE_SLICE_END for e in events))

    def test_breakdown_adds_up_for_every_rank_and_all_flops_are_lowered(self):
        report = json.loads(self.train("--json").stdout)
        step_ps = report["simulated"]["step_time_ps"]
        rows = report["simulated"]["breakdown"]
        self.assertEqual(len(rows), report["world_size"])
        for row in rows:
            parts = sum(
                v
                for k, v in row.items()
                if k.endswith("_ps") and k not in ("total_ps", "memory_bound_ps")
            )
            self.assertLessEqual(abs(parts - step_ps), 1e-4 * step_ps)
            self.assertGreater(row["matmul_ps"], 0)
        self.assertEqual(report["simulated"]["coverage"]["lowered_flops_share"], 1.0)

    def test_attribution_adds_up_to_the_picosecond_in_every_layout(self):
        layouts = [
            {},
            {"tensor_model_parallel_size": 1, "sequence_parallel": "false"},
            {"pipeline_model_parallel_size": 1},
            {"sequence_parallel": "false"},
            {"pipeline_model_parallel_size": 4},
        ]
        for layout in layouts:
            result = self.trellis(
                "simulate",
                QUICKSTART,
                "exp_manager.use_datetime_version=false",
                "--json",
                *(f"distributed_strategy.{key}={value}" for key, value in layout.items()),
            )
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            report = json.loads(result.stdout)
            rows = report["simulated"]["attribution"]["rows"]
            self.assertEqual(
                sum(row["time_ps"] for row in rows), report["simulated"]["step_time_ps"], layout
            )
            self.assertEqual(
                len(
                    {(row["phase"], row["component"], row["operator"], row["kind"]) for row in rows}
                ),
                len(rows),
            )
            kinds = {row["kind"] for row in rows}
            for axis, size in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("dp", "data")):
                if report[f"{size}_parallel_size"] == 1:
                    self.assertNotIn(f"comm_{axis}", kinds, layout)
            products = [
                row for row in rows if row["operator"] == "mm" and row["phase"] == "forward"
            ]
            self.assertTrue(
                any(row["component"] == "model.layers.*.mlp" for row in products), products
            )
            # Parts of the breakdown of the same rank, where both say the same thing.
            last = report["simulated"]["attribution"]["rank"]
            part = next(row for row in report["simulated"]["breakdown"] if row["rank"] == last)
            for kind, key in (
                ("comm_tp", "exposed_tp_ps"),
                ("comm_pp", "exposed_pp_ps"),
                ("optimizer", "optimizer_ps"),
                ("bubble", "bubble_ps"),
                ("host", "host_ps"),
                ("launch", "launch_ps"),
            ):
                self.assertEqual(
                    sum(row["time_ps"] for row in rows if row["kind"] == kind),
                    part[key],
                    (layout, kind),
                )

    def test_timings_kept_on_disk_change_no_byte(self):
        def run(name, cache):
            log = self.dir / name
            result = self.trellis(
                "simulate",
                QUICKSTART,
                f"exp_manager.explicit_log_dir={log}",
                "--trace-format",
                "text",
                "--no-cache",
                env={"TRELLIS_CACHE": str(cache)},
            )
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            return (
                result.stdout,
                (log / "report.json").read_bytes(),
                (log / "trace.txt").read_bytes(),
                (log / "portability.json").read_bytes(),
            )

        cache = self.dir / "cache"
        off, cold, warm = run("off", "off"), run("cold", cache), run("warm", cache)
        self.assertEqual(off, cold)
        self.assertEqual(cold, warm)
        kept = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
        self.assertGreater(len(kept), 5)
        for path, content in kept.items():
            path.write_bytes(content[: len(content) // 2])
        self.assertEqual(run("damaged", cache), cold)
        self.assertEqual(
            {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}, kept
        )

    def simulate_kept(self, name, *args, cache="kept"):
        """A run that may be answered by an equal one; what the loader says shows whether LibTorch
        was needed."""
        result = self.trellis(
            "simulate",
            QUICKSTART,
            f"exp_manager.explicit_log_dir={self.dir / name}",
            *args,
            env={"TRELLIS_CACHE": str(self.dir / cache), "LD_DEBUG": "files"},
        )
        said = re.sub(r"^ *\d+:\t.*\n", "", result.stderr, flags=re.M)
        self.assertEqual(result.returncode, 0, said[-2000:])
        return result.stdout, "libtorch_cpu" not in result.stderr, said

    def files_of_run(self, name):
        """All but the two that say where it ran and how it was called."""
        return {
            path.name: path.read_bytes()
            for path in (self.dir / name).iterdir()
            if path.name not in ("hparams.yaml", "cmd-args.log")
        }

    def test_an_equal_run_is_answered_by_the_kept_one(self):
        first, kept, _ = self.simulate_kept("kept_first")
        self.assertFalse(kept)
        again, kept, _ = self.simulate_kept("kept_again")
        self.assertTrue(kept)
        self.assertEqual(again, first)
        self.assertEqual(self.files_of_run("kept_again"), self.files_of_run("kept_first"))
        self.assertIn("report.json", self.files_of_run("kept_again"))
        self.assertIn("kept_again", (self.dir / "kept_again/hparams.yaml").read_text())
        self.assertIn("kept_again", (self.dir / "kept_again/cmd-args.log").read_text())
        document, kept, _ = self.simulate_kept("kept_json", "--json", "--threads", 1)
        self.assertTrue(kept)
        self.assertEqual(document, (self.dir / "kept_first/report.json").read_text())
        # A page shows more than a run without one keeps.
        pages = [
            self.simulate_kept(f"kept_page_{i}", "--html", self.dir / f"kept_{i}.html")
            for i in range(2)
        ]
        self.assertEqual([(page[0], page[1]) for page in pages], [(first, False), (first, True)])
        documents = [
            re.search(
                r'<script type="application/json" id="document">(.*?)</script>',
                (self.dir / f"kept_{i}.html").read_text(),
                re.S,
            ).group(1)
            for i in range(2)
        ]
        self.assertEqual(documents[0].replace("kept_page_0", "kept_page_1"), documents[1])

    def test_what_decides_a_run_is_part_of_its_key(self):
        self.simulate_kept("key_base", cache="key")
        for i, change in enumerate(
            (
                ["model.num_layers=2"],
                ["--set", "core.dma.engine_rate=20 GB/s"],
                ["--published-only"],
                ["--nodes", 2],
                ["--trace-format", "text"],
                ["--steps", 2],
                ["--no-cache"],
            )
        ):
            self.assertFalse(self.simulate_kept(f"key_{i}", *change, cache="key")[1], change)
        self.assertTrue(self.simulate_kept("key_same", cache="key")[1])

    def test_a_damaged_kept_run_is_made_again(self):
        first, _, _ = self.simulate_kept("whole", cache="broken")
        (entry,) = (self.dir / "broken/trellis_kept_runs").glob("*.run")
        entry.write_bytes(entry.read_bytes()[:1000])
        again, kept, err = self.simulate_kept("damaged", cache="broken")
        self.assertEqual((again, kept), (first, False))
        self.assertIn("a cached result is ignored and made again", err)
        self.assertTrue(self.simulate_kept("mended", cache="broken")[1])

    def test_cpu_gives_the_losses_of_neuron(self):
        neuron = json.loads(self.train("--json").stdout)
        cpu = json.loads(self.train("--json", "--device", "cpu", log="cpu").stdout)
        self.assertAlmostEqual(neuron["last_loss"], cpu["last_loss"], places=5)
        self.assertNotIn("step_time_ms", cpu)

    def memory(self, *args):
        """Of each rank, at the peak of one shape-only step."""
        result = self.trellis(
            "simulate", QUICKSTART, "exp_manager.use_datetime_version=false", "--json", *args
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return json.loads(result.stdout)["memory"]["ranks"]

    def test_sequence_parallelism_saves_activations(self):
        whole, cut = (
            self.memory(f"distributed_strategy.sequence_parallel={on}") for on in ("false", "true")
        )
        for before, after in zip(whole, cut, strict=True):
            self.assertLess(
                after["at_peak"]["activation_bytes"], 0.9 * before["at_peak"]["activation_bytes"]
            )

    def test_memory_does_not_grow_with_the_micro_batches(self):
        """A backward frees what its forward kept; with several stages as many micro-batches are in
        flight. What stays of each is its loss, a block of 512 bytes."""
        for stages in (1, 2):
            few, many = (
                self.memory(
                    f"distributed_strategy.pipeline_model_parallel_size={stages}",
                    f"data.global_batch_size={size}",
                )
                for size in (16, 64)
            )
            for before, after in zip(few, many, strict=True):
                self.assertLessEqual(
                    after["peak_bytes"] - before["peak_bytes"], 512 * (64 - 16) // 2
                )

    def test_report_begins_with_what_train_printed(self):
        trained = self.train()
        again = self.trellis("report", self.dir / "run")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertTrue(again.stdout.startswith(trained.stdout))

    def test_results_do_not_depend_on_run_or_host_threads(self):
        runs = []
        for i, threads in enumerate((1, 2, 2)):
            result = self.train("--threads", threads, "--trace-format", "text", log=f"run{i}")
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            folder = self.dir / f"run{i}"
            runs.append(
                [
                    (folder / name).read_bytes()
                    for name in ("report.json", "metrics.jsonl", "trace.txt")
                ]
            )
        self.assertEqual(runs[0], runs[1])
        self.assertEqual(runs[1], runs[2])

    def files_of(self, folders):
        """Runs the same commands in each folder; the files of each by relative name."""
        commands = [
            ["train", QUICKSTART, *SHORT, "exp_manager.explicit_log_dir=trained", "--json"],
            [
                "simulate",
                QUICKSTART,
                "exp_manager.explicit_log_dir=simulated",
                "--html",
                "simulated.html",
            ],
            ["report", "trained"],
            ["report", "simulated", "--html", "report.html"],
            ["report", "trained", "simulated", "--json"],
            ["schedule", QUICKSTART, "--svg", "schedule.svg"],
            ["memory", QUICKSTART, "--no-changes"],
        ]
        for folder in folders:
            folder.mkdir()
            for i, command in enumerate(commands):
                result = subprocess.run(
                    [TRELLIS, *map(str, command)],
                    capture_output=True,
                    cwd=folder,
                    timeout=300,
                    env={**os.environ, "TRELLIS_CACHE": "off"},
                )
                self.assertEqual(result.returncode, 0, result.stderr[-2000:])
                (folder / f"{i}.stdout").write_bytes(result.stdout)
        return [
            {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
            for folder in folders
        ]

    def test_equal_runs_write_equal_bytes_in_every_file(self):
        """The same command in two folders: every file of a run, and the pages and pictures made of
        it. What knows the host's clock is named here, and is nothing else."""
        folders = [self.dir / "first", self.dir / "second"]
        files = self.files_of(folders)
        self.assertEqual(files[0].keys(), files[1].keys())
        of_the_host = re.compile(
            r".*/(host\.json|nemo_log_globalrank-.*\.txt|nemo_error_log\.txt"
            r"|lightning_logs\.txt|events\.out\.tfevents\..*)"
        )
        different = [
            name for name in files[0] if files[0][name].read_bytes() != files[1][name].read_bytes()
        ]
        self.assertEqual([name for name in different if not of_the_host.fullmatch(name)], [])
        for name in (
            "trained/report.json",
            "trained/metrics.jsonl",
            "trained/trace.pftrace",
            "simulated/hparams.yaml",
            "simulated.html",
            "report.html",
            "schedule.svg",
        ):
            self.assertIn(name, files[0])
        self.check_host_files(files[0])
        self.check_events(folders)

    def check_host_files(self, files):
        for run in ("trained", "simulated"):
            host = json.loads(files[f"{run}/host.json"].read_text())
            self.assertEqual(host["schema"], "trellis.host/1")
            self.assertGreater(host["wall_s"], 0)
            self.assertGreaterEqual(host["peak_resident_bytes"], host["resident_bytes_before"])
            self.assertEqual(
                [step["step"] for step in host["steps"]], [1, 2] if run == "trained" else [1]
            )
            for name in ("report.json", "metrics.jsonl"):
                keys = set(re.findall(r'"(\w+)":', files[f"{run}/{name}"].read_text()))
                self.assertEqual(
                    keys
                    & {
                        "host",
                        "wall_s",
                        "resident_bytes_before",
                        "peak_resident_bytes",
                        "s_per_step",
                        "sequences_per_s",
                    },
                    set(),
                )

    def check_events(self, folders):
        # The values of the events are equal too, except for NxDT's scalars of the host.
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        scalars = []
        for folder in folders:
            events = EventAccumulator(str(folder / "trained"))
            events.Reload()
            tags = [
                tag
                for tag in events.Tags()["scalars"]
                if not tag.endswith("_timing") and not tag.startswith("throughput")
            ]
            scalars.append(
                {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
            )
        self.assertIn("reduced_train_loss", scalars[0])
        self.assertEqual(*scalars)

    def test_a_test_pass_follows_when_asked_for(self):
        (self.dir / "held_out").mkdir()
        (self.dir / "held_out/a.txt").write_text("Ladies and gentlemen of the test set. " * 2000)
        result = self.train(
            "--device",
            "cpu",
            "--test",
            "--json",
            f"data.test_dir={self.dir / 'held_out'}",
            "trainer.limit_test_batches=2",
            f"data.val_dir={self.dir / 'held_out'}",
            "trainer.val_check_interval=2",
            "trainer.limit_val_batches=2",
            "trainer.check_val_every_n_epoch=null",
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.dir / "run"))
        events.Reload()
        self.assertLessEqual(
            {"val_loss", "test_loss", "validation_step_timing", "test_step_timing"},
            set(events.Tags()["scalars"]),
        )
        self.assertEqual(
            events.Scalars("val_loss")[0].value,
            events.Scalars("test_loss")[0].value,
            "the same data, the same weights",
        )
        report = json.loads(result.stdout)
        rows = [
            json.loads(line) for line in (self.dir / "run/metrics.jsonl").read_text().splitlines()
        ]
        self.assertEqual(rows[-1], {"step": 2, "test_loss": report["test_loss"]})
        self.assertIn("test after step 2: loss ", (self.dir / "run/lightning_logs.txt").read_text())
        self.fails(
            self.train("--device", "cpu", "--test", log="none"),
            2,
            "--test: there are no test data",
            "data.test_dir",
        )

    def test_version_and_help(self):
        self.assertIn("LibTorch 2.13.0", self.trellis("--version").stdout)
        self.assertIn(
            "trellis train examples/quickstart.yaml", self.trellis("train", "--help").stdout
        )

    def test_describe_names_sources(self):
        self.assertIn("trn1.32xlarge", self.trellis("describe").stdout)
        described = self.trellis("describe", "trn1.32xlarge", "--json")
        self.assertEqual(described.returncode, 0, described.stderr)
        totals = {d["key"]: d["value"] for d in json.loads(described.stdout)["derived"]}
        self.assertEqual(
            (totals["instance.logical_cores"], totals["instance.hbm"], totals["instance.efa"]),
            (32, 512, 800),
        )

    def test_describe_draws_the_topology(self):
        described = self.trellis(
            "describe", "trn2u.48xlarge", "--nodes", "4", "--topology", "ultra.svg"
        )
        self.assertEqual(described.returncode, 0, described.stderr)
        for text in (
            "0     1       0     12, 3, 4, 1",
            "memory of the model",
            "Where the documents disagree",
        ):
            self.assertIn(text, described.stdout)
        svg = (self.dir / "ultra.svg").read_text()
        self.assertEqual(svg.count(">chip "), 64)
        self.assertEqual(
            self.trellis("describe", "trn1.32xlarge", "--topology", "trn1.dot").returncode, 0
        )
        self.assertTrue((self.dir / "trn1.dot").read_text().startswith('graph "trn1.32xlarge" {'))

    def test_describe_takes_another_number_and_another_core_size(self):
        described = self.trellis(
            "describe",
            "trn2.48xlarge",
            "--nodes",
            "2",
            "--lnc",
            "1",
            "--set",
            "network.oversubscription=4",
            "--json",
        )
        self.assertEqual(described.returncode, 0, described.stderr)
        document = json.loads(described.stdout)
        totals = {d["key"]: d["value"] for d in document["derived"]}
        self.assertEqual(totals["cluster.logical_cores"], 256)
        links = {link["kind"]: link["gb_per_s"] for link in document["fabric"]["links"]}
        self.assertAlmostEqual(links["network_out"], 16 * links["efa_out"] / 4)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
