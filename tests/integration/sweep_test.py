#!/usr/bin/env python3
"""`trellis sweep` on small models: bounds compared with simulations, statuses, resume, shards,
files. Environment: TRELLIS, the program."""

import csv
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import pyarrow.parquet

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
HF = SOURCE / "examples/verify_llama.yaml"
MIXTRAL = SOURCE / "examples/verify_mixtral.yaml"
RING = ["model.fusions={ring_attention: true, flash_attention: false}"]
FACTORS = ("tensor", "pipeline")
LLAMA8B = SOURCE / "examples/llama3_8b_trn1.yaml"
GPT22B = SOURCE / "benchmarks/cli/gpt_22b.yaml"
# 8 ranks; legal are TP 1 and 2, as there are two key/value heads.
SPACE = [
    QUICKSTART,
    "--chips",
    4,
    "--only",
    "mbs=2",
    "--only",
    "zero1=true",
    "--only",
    "recompute=none,full",
]
FEW = [*SPACE, "--only", "tp=2,4", "--only", "vpp=1", "--top", 2]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)

    @classmethod
    def trellis(cls, *args):
        return subprocess.run(
            [TRELLIS, *map(str, args)], capture_output=True, text=True, cwd=cls.dir, timeout=800
        )

    @classmethod
    def ok(cls, *args):
        result = cls.trellis(*args)
        if result.returncode != 0:
            raise AssertionError(f"{args}: {result.returncode}\n{result.stderr[-2000:]}")
        return result.stdout

    @classmethod
    def sweep(cls, *args):
        return json.loads(cls.ok("sweep", *args, "--json"))

    def fails(self, code, *args, text):
        result = self.trellis("sweep", *args)
        self.assertEqual(result.returncode, code, result.stderr[-2000:])
        self.assertIn(text, result.stderr)


class Bounds(Case):
    def check(self, document, at_least):
        rows = [row for row in document["rows"] if row["step_time_ps"] is not None]
        self.assertGreaterEqual(len(rows), at_least)
        for row in rows:
            with self.subTest(row["layout"]):
                self.assertGreater(row["bound_ps"], 0)
                self.assertLessEqual(row["bound_ps"], row["step_time_ps"])
                self.assertLessEqual(row["bound_bytes"], row["peak_bytes"])
                self.assertGreater(
                    row["bound_bytes"], row["peak_bytes"] / 8, "the bound says something"
                )

    def test_no_simulation_is_below_its_bounds(self):
        self.check(self.sweep(*SPACE, "--all"), 20)

    def test_memory_of_whole_models_is_known_before_they_are_simulated(self):
        rows = [
            row
            for config, *space in (
                (LLAMA8B, "--only", "tp=4,8", "--only", "pp=1,2,4", "--only", "vpp=1,4"),
                (GPT22B, "--instance", "trn2.48xlarge", "--only", "tp=8", "--only", "pp=4")
                + ("--only", "vpp=1,2"),
            )
            for row in self.sweep(
                config,
                "--nodes",
                1,
                *space,
                *("--only", "mbs=1", "--only", "zero1=true", "--only", "recompute=none"),
                "--all",
            )["rows"]
            if row["peak_bytes"] is not None
        ]
        self.assertGreaterEqual(len(rows), 16)
        for row in rows:
            with self.subTest(row["layout"]):
                self.assertLessEqual(row["bound_bytes"], row["peak_bytes"])
                self.assertGreater(row["bound_bytes"], 0.97 * row["peak_bytes"])

    def test_nor_with_copied_heads_and_without_zero1(self):
        self.check(
            self.sweep(
                HF,
                "--chips",
                4,
                "--all",
                "--only",
                "tp=4,8",
                "--only",
                "mbs=1,4",
                "--only",
                "vpp=1",
                "--only",
                "recompute=selective",
                "--fix",
                "sp",
            ),
            8,
        )

    def test_nor_with_context_or_expert_parallelism(self):
        axes = [
            *("--only", "tp=1,2", "--only", "pp=1", "--only", "mbs=1", "--only", "zero1=true"),
            *("--only", "kv=1", "--only", "recompute=none", "--all"),
        ]
        document = self.sweep(HF, *RING, "--chips", 2, "--only", "cp=2,4", *axes)
        self.check(document, 3)
        for row in document["rows"]:
            self.assertEqual(row["tp"] * row["dp"] * row["cp"], 4, row["layout"])
        experts = self.sweep(MIXTRAL, "--chips", 2, "--only", "ep=2,4", "--fix", "cp", *axes)
        self.check(experts, 3)
        self.assertEqual({row["ep"] for row in experts["rows"]}, {2, 4})

    def test_nor_fully_sharded(self):
        axes = [
            *("--only", "tp=1,2", "--only", "pp=1", "--only", "mbs=1", "--only", "kv=1", "--all"),
            *("--fix", "cp", "--only", "recompute=none,full", "--only", "zero1=true"),
        ]
        alone = self.sweep(HF, "--chips", 2, *axes)
        self.assertEqual({row["fsdp"] for row in alone["rows"]}, {False})
        document = self.sweep(HF, "--chips", 2, "--only", "fsdp=true,false", *axes)
        self.check(document, 6)
        rows = {row["layout"]: row for row in document["rows"]}
        pairs = [
            (row, rows[layout.replace("FSDP", "ZeRO1")])
            for layout, row in rows.items()
            if row["fsdp"]
        ]
        self.assertGreaterEqual(len(pairs), 3)
        for sharded, whole in pairs:
            self.assertLess(sharded["peak_bytes"], whole["peak_bytes"], sharded["layout"])
            self.assertEqual(sharded["validity"], "exploratory")

    def test_the_rings_traffic_is_not_that_of_data_parallelism(self):
        layout = ["trainer.devices=4", "distributed_strategy.context_parallel_size=4"]
        layout += [f"distributed_strategy.{axis}_model_parallel_size=1" for axis in FACTORS]
        layout += ["distributed_strategy.sequence_parallel=false"]
        report = json.loads(self.ok("simulate", HF, *RING, *layout, "--json", "--no-cache"))
        for row in report["simulated"]["breakdown"]:
            self.assertGreater(row["exposed_cp_ps"], 0)
        kinds = {row["kind"] for row in report["simulated"]["attribution"]["rows"]}
        self.assertIn("comm_cp", kinds)
        self.assertNotIn("comm_other", kinds)

    def test_nor_with_wide_layers(self):
        wide = [
            "model.hidden_size=1024",
            "model.ffn_hidden_size=4096",
            "model.num_attention_heads=8",
            "model.num_kv_heads=8",
            "model.encoder_seq_length=1024",
            "model.num_layers=8",
        ]
        document = self.sweep(
            QUICKSTART,
            *wide,
            "--chips",
            4,
            "--all",
            "--only",
            "mbs=1",
            "--only",
            "tp=2,4",
            "--only",
            "vpp=1,2",
            "--only",
            "recompute=none,full",
            "--only",
            "sp=true",
            "--gbs",
            16,
            "--only",
            "zero1=true",
        )
        self.check(document, 8)
        self.assertGreater(
            max(
                row["bound_ps"] / row["step_time_ps"]
                for row in document["rows"]
                if row["step_time_ps"]
            ),
            0.1,
        )


class TooLarge(Case):
    """Whether any layout fits: the bound says no where a simulation would."""

    GPT_22B = SOURCE / "benchmarks/cli/gpt_22b.yaml"

    def test_none_fits_is_known_without_a_simulation(self):
        result = self.trellis(
            "sweep", self.GPT_22B, "--instance", "trn2.48xlarge", "--chips", 2, "--json"
        )
        document = json.loads(result.stdout)
        self.assertEqual((document["counts"]["ok"], document["counts"]["dominated"]), (0, 0))
        self.assertGreater(document["counts"]["oom"], 2000)
        self.assertNotIn("left at most", result.stderr, "a simulation ran")

    def test_the_answer_is_that_of_the_simulations(self):
        # 8 B of weights, gradients and moments per parameter fit, the 2 B of new weights do not.
        document = self.sweep(
            self.GPT_22B,
            "model.num_layers=7",
            "model.encoder_seq_length=256",
            "--instance",
            "trn1.2xlarge",
            "--only",
            "tp=2",
            "--only",
            "zero1=false",
            "--only",
            "mbs=1",
            "--only",
            "recompute=none,full",
            "--gbs",
            1,
        )
        ruled_out = [
            row
            for row in document["rows"]
            if row["status"] == "oom" and "at least take" in row["reason"]
        ]
        self.assertEqual({row["sequence_parallel"] for row in ruled_out}, {True, False})
        self.assertGreaterEqual(len(ruled_out), 4)
        for row in ruled_out:
            self.assertLess(row["bound_bytes"], 20e9, "by the update alone")
            run = self.trellis(*shlex.split(row["command"])[1:])
            self.assertEqual(run.returncode, 3, row["layout"] + run.stderr[-500:])
            self.assertIn("phase optimizer", run.stderr)


class Estimates(Case):
    """The fast tier compared with full simulations, on layouts whose links no one else uses."""

    WIDE = [
        "model.hidden_size=2048",
        "model.ffn_hidden_size=5632",
        "model.num_attention_heads=16",
        "model.num_kv_heads=16",
        "model.encoder_seq_length=1024",
        "model.num_layers=8",
    ]
    RANGE = 0.05  # analysis/sweep/estimate.h

    def test_estimates_are_within_their_range(self):
        document = self.sweep(
            QUICKSTART,
            *self.WIDE,
            "--chips",
            4,
            "--all",
            "--fast",
            "--only",
            "mbs=1,2",
            "--only",
            "zero1=true",
            "--only",
            "recompute=none",
            "--only",
            "sp=true,false",
            "--only",
            "kv=1",
            "--only",
            "vpp=1",
            "--gbs",
            32,
        )
        rows = [row for row in document["rows"] if row["step_time_ps"] is not None]
        self.assertGreaterEqual(len(rows), 20)
        for row in rows:
            with self.subTest(row["layout"]):
                self.assertAlmostEqual(
                    row["estimate_ps"] / row["step_time_ps"], 1, delta=self.RANGE
                )
                self.assertLessEqual(row["bound_ps"], row["step_time_ps"])

    def test_fewer_layouts_are_simulated_and_the_best_stay(self):
        few = [
            QUICKSTART,
            *self.WIDE,
            "--chips",
            4,
            "--only",
            "mbs=1",
            "--only",
            "zero1=true",
            "--only",
            "recompute=none",
            "--only",
            "sp=true",
            "--only",
            "kv=1",
            "--gbs",
            16,
            "--top",
            2,
        ]
        fast, whole = self.sweep(*few, "--fast"), self.sweep(*few)
        self.assertEqual(fast["best"], whole["best"])
        simulated = [
            sum(
                row["step_time_ps"] is not None or row["status"] == "oom"
                for row in document["rows"]
            )
            for document in (fast, whole)
        ]
        self.assertLessEqual(simulated[0], simulated[1])
        self.fails(
            2,
            *few,
            "--fast",
            "--out",
            "kept",
            text="--fast: its estimates are not kept in a journal",
        )


class Software(Case):
    """A layout is out of memory by what the configuration's software takes, where that is known."""

    def test_what_fits_this_trainer_need_not_fit_the_software(self):
        one = [
            LLAMA8B,
            "model.num_layers=16",
            "--nodes",
            1,
            "--gbs",
            16,
            *(
                word
                for axis in (
                    "tp=8",
                    "pp=1",
                    "vpp=1",
                    "mbs=4",
                    "sp=true",
                    "zero1=true",
                    "recompute=none",
                    "kv=1",
                )
                for word in ("--only", axis)
            ),
        ]
        alone, nxd = self.sweep(*one), self.sweep(*one, "software=nxd", "--out", "nxd")
        self.assertEqual([row["status"] for row in alone["rows"]], ["ok"])
        (row,) = nxd["rows"]
        self.assertEqual((row["status"], row["step_time_ps"]), ("oom", None))
        self.assertRegex(
            row["reason"],
            r"^nxd on a device takes an estimated \d+\.\d\d GiB \(trellis memory\); a core has "
            r"16\.00 GiB$",
        )
        self.assertEqual(
            self.sweep(*one, "software=nxd", "--out", "nxd")["rows"],
            nxd["rows"],
            "from the journal",
        )
        reported = json.loads(self.ok(*shlex.split(row["command"])[1:], "--json"))["memory"][
            "software"
        ]
        self.assertEqual(reported["verdict"], "does_not_fit")
        self.assertIn(f"{reported['total_bytes'] / 2**30:.2f} GiB", row["reason"])
        self.assertRegex(
            self.ok(*shlex.split(row["command"])[1:]),
            r"nxd on a device, estimated: \d+\.\d\d GiB of 16\.00 GiB per logical core: DOES "
            r"NOT FIT",
        )


class Sweeps(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = cls.ok(
            "sweep",
            *FEW,
            "--csv",
            "rows.csv",
            "--parquet",
            "rows.parquet",
            "--svg",
            "front.svg",
            "--out",
            "whole",
        )
        cls.document = cls.sweep(*FEW, "--out", "whole")

    def test_schema_and_counts(self):
        self.assertEqual(self.document["schema"], "trellis.sweep/1")
        self.assertEqual(len(self.document["rows"]), self.document["space"]["candidates"])
        self.assertEqual(
            [row["index"] for row in self.document["rows"]], list(range(len(self.document["rows"])))
        )
        for status, count in self.document["counts"].items():
            self.assertEqual(count, sum(row["status"] == status for row in self.document["rows"]))

    def test_every_status_occurs(self):
        self.assertGreater(self.document["counts"]["ok"], 0)
        self.assertGreater(self.document["counts"]["dominated"], 0)
        self.assertGreater(self.document["counts"]["illegal"], 0)
        too_large = self.sweep(
            LLAMA8B, "--chips", 1, "--only", "mbs=1", "--only", "vpp=1", "--only", "kv=1"
        )
        self.assertGreater(too_large["counts"]["oom"], 0)
        self.assertEqual(too_large["counts"]["ok"], 0)
        for row in [*self.document["rows"], *too_large["rows"]]:
            self.assertEqual(row["status"] == "ok", row["reason"] == "", row)

    def test_illegal_rows_say_what_validate_says(self):
        row = next(
            row for row in self.document["rows"] if row["status"] == "illegal" and row["tp"] == 4
        )
        checked = self.trellis(
            "validate",
            QUICKSTART,
            "distributed_strategy.tensor_model_parallel_size=4",
            f"distributed_strategy.pipeline_model_parallel_size={row['pp']}",
            f"distributed_strategy.sequence_parallel={str(row['sequence_parallel']).lower()}",
        )
        self.assertIn(row["reason"].split("; hold")[0], checked.stderr)

    def test_its_command_gives_a_row_again(self):
        row = self.document["rows"][self.document["best"]["1"][0]]
        words = shlex.split(row["command"])
        self.assertEqual(words[0], "trellis")
        report = json.loads(
            self.ok(*words[1:], f"exp_manager.explicit_log_dir={self.dir / 'again'}", "--json")
        )
        self.assertEqual(report["simulated"]["step_time_ps"], row["step_time_ps"])
        self.assertEqual(
            max(rank["peak_bytes"] for rank in report["memory"]["ranks"]), row["peak_bytes"]
        )
        self.assertEqual(report["tokens_per_s"], row["tokens_per_s"])

    def test_best_are_in_order_and_the_front_is_not_beaten(self):
        rows = self.document["rows"]
        times = [rows[i]["step_time_ps"] for i in self.document["best"]["1"]]
        self.assertEqual(times, sorted(times))
        self.assertEqual(len(times), 2)
        for i in self.document["pareto"]:
            self.assertFalse(
                any(
                    r["status"] == "ok"
                    and r["step_time_ps"] < rows[i]["step_time_ps"]
                    and r["peak_bytes"] < rows[i]["peak_bytes"]
                    for r in rows
                )
            )

    def test_files_hold_the_same_rows(self):
        with open(self.dir / "rows.csv", newline="") as file:
            lines = list(csv.DictReader(file))
        table = pyarrow.parquet.read_table(self.dir / "rows.parquet").to_pylist()
        self.assertEqual(len(lines), len(self.document["rows"]))
        for line, record, row in zip(lines, table, self.document["rows"]):
            self.assertEqual(record, {key: row[key] for key in record})
            self.assertEqual(line["command"], row["command"] or "")
            self.assertEqual(
                line["step_time_ps"],
                "" if row["step_time_ps"] is None else str(row["step_time_ps"]),
            )
        circles = xml.etree.ElementTree.parse(self.dir / "front.svg").findall(
            ".//{http://www.w3.org/2000/svg}circle"
        )
        self.assertEqual(
            len(circles), sum(row["step_time_ps"] is not None for row in self.document["rows"])
        )

    def test_text(self):
        for part in (
            "candidates on 1 node trn1.32xlarge, 8 ranks each",
            "dominated",
            "tokens/s",
            "Pareto front",
            "trellis simulate",
        ):
            self.assertIn(part, self.text)

    def test_interrupted_sweep_goes_on_to_the_same_bytes(self):
        command = [TRELLIS, "sweep", *map(str, FEW), "--out", "cut", "--jobs", "1", "--json"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.dir
        )
        journal = self.dir / "cut/journal.jsonl"
        while child.poll() is None and (
            not journal.exists() or journal.read_text().count("\n") < 2
        ):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130, err)
        self.assertIn("the same command goes on", err)
        self.assertEqual([path.name for path in (self.dir / "cut").iterdir()], ["journal.jsonl"])
        kept = journal.read_text()
        with journal.open("a") as file:
            file.write('{"index": 3, "layo')
        again = subprocess.run(command, capture_output=True, text=True, cwd=self.dir, timeout=600)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("the last line is torn", again.stderr)
        self.assertEqual(json.loads(again.stdout), self.document)
        self.assertTrue(journal.read_text().startswith(kept), "nothing was simulated twice")

    def test_shards_merged_are_the_whole(self):
        for i in (1, 2):
            self.ok("sweep", *FEW, "--shard", f"{i}/2", "--out", f"part{i}")
        merged = self.sweep("merge", "part2", "part1")
        self.assertEqual({**merged, "space": None}, {**self.document, "space": None})

    def test_processes_of_a_launcher_take_the_part_of_their_number(self):
        def launched(rank, *args):
            names = {
                "RANK": rank,
                "WORLD_SIZE": 2,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": 29512,
            }
            return subprocess.run(
                [TRELLIS, "sweep", *map(str, FEW), "--out", "launched", *args],
                capture_output=True,
                text=True,
                cwd=self.dir,
                env={**os.environ, **{name: str(value) for name, value in names.items()}},
            )

        for rank in range(2):
            done = launched(rank)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        merged = self.sweep("merge", "launched/1-of-2", "launched/2-of-2")
        self.assertEqual({**merged, "space": None}, {**self.document, "space": None})
        done = launched(0, "--csv", "all.csv")
        self.assertEqual(done.returncode, 2, done.stderr[-2000:])
        self.assertIn("give it to `trellis sweep merge`", done.stderr)

    def test_bad_input(self):
        self.fails(2, text="which configuration?")
        self.fails(2, QUICKSTART, "--only", "tpp=1", text="did you mean `tp`?")
        self.fails(2, QUICKSTART, "--instance", "trn9", text="trn9")
        self.fails(2, QUICKSTART, "--shard", "1/2", text="give --out DIR too")
        self.fails(2, *FEW, "--shard", "3/2", "--out", "x", text="expected i/n")
        self.fails(2, *FEW, "--gbs", 32, "--out", "whole", text="the folder holds another sweep")
        self.fails(2, self.dir / "none.yaml", text="none.yaml")
        self.fails(2, "merge", self.dir, text="no journal.jsonl there")
        self.fails(2, QUICKSTART, "model.num_layers=0", text="num_layers")


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=1)
