#!/usr/bin/env python3
"""Inputs that are no files, sizes without meaning, names with control characters, words that are no
verb: a short text, exit code 2, at once. Environment: TRELLIS, the program."""

import csv
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = os.environ["TRELLIS"]
QUICKSTART = SOURCE / "examples/quickstart.yaml"
LLAMA = SOURCE / "examples/llama3_8b_trn1.yaml"
HOSTILE = "a\x1b[31m\x07\nforged: all is well\r\x7f\u009b\u202e=1+1"


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def trellis(self, *args, timeout=60, **kwargs):
        return subprocess.run(
            [TRELLIS, *map(str, args)],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            cwd=self.dir,
            timeout=timeout,
            env={**os.environ, "TRELLIS_CACHE": "off"},
            **kwargs,
        )

    def refused(self, *args, texts=(), most_seconds=2, most_bytes=20_000):
        """Seconds of the processor: a loaded machine does not change them."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = self.trellis(*args)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertEqual(result.returncode, 2, result.stderr[-1000:])
        self.assertEqual(result.stdout, "")
        self.assertNotIn("internal error", result.stderr)
        self.assertLess(len(result.stderr), most_bytes)
        self.assertLess(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, most_seconds
        )
        for text in texts:
            self.assertIn(text, result.stderr)
        return result.stderr

    def fit_for_a_terminal(self, text):
        for line in text.split("\n"):
            self.assertFalse(line.startswith("forged"), text)
            for c in line:
                self.assertTrue(
                    c == "\t"
                    or (ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0 and ord(c) != 0x202E),
                    repr(line),
                )


class NoFiles(Case):
    def test_pipes_and_devices_are_named_whatever_reads_them(self):
        build = ["data", "build", QUICKSTART, "--output", "out", "--tokenizer"]
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        for path, kind in (
            (pipe, "a named pipe"),
            ("/dev/zero", "a device"),
            (self.dir, "a directory"),
        ):
            for args in (
                ["validate", path],
                ["simulate", path],
                ["report", path],
                ["diff", path, path],
                ["calibrate", path],
                ["data", "build", path, "--output", "out"],
                [*build, "huggingface", "--type", path],
                [*build, "sentencepiece", "--model", path],
                [
                    *build,
                    "megatron",
                    "--type",
                    "GPT2BPETokenizer",
                    "--vocab-file",
                    path,
                    "--merge-file",
                    path,
                ],
                ["validate", QUICKSTART, "model_source=hf", f"model.model_config={path}"],
            ):
                if path == self.dir and args[0] in ("report", "diff", "data"):
                    continue  # a folder of a run, of texts, of a tokenizer
                with self.subTest(args=args):
                    self.refused(*args, texts=[f"it is {kind}; expected a regular file"])
        for extension in (".idx", ".bin"):
            os.mkfifo(self.dir / f"set{extension}")
        self.refused("data", "inspect", "set", texts=["set.idx: it is a named pipe"])

    def test_names_that_are_too_long_and_files_without_content(self):
        name = "x" * 5000
        for args in (
            ["data", "inspect", name],
            ["validate", name],
            ["report", name],
            ["diff", name, name],
            ["data", "build", name, "--output", "out"],
            ["data", "build", QUICKSTART, "--output", name],
            ["gate", "--baseline", name, name],
        ):
            with self.subTest(args=args[:2]):
                self.refused(*args, texts=["File name too long"])
        empty = self.dir / "empty"
        empty.write_bytes(b"")
        for args in (
            ["--tokenizer", "huggingface", "--type", empty],
            ["--tokenizer", "sentencepiece", "--model", empty],
            [
                "--tokenizer",
                "megatron",
                "--type",
                "GPT2BPETokenizer",
                "--vocab-file",
                empty,
                "--merge-file",
                empty,
            ],
        ):
            with self.subTest(args=args):
                self.refused(
                    "data", "build", QUICKSTART, "--output", "out", *args, texts=["is empty"]
                )
        self.refused("report", empty, texts=["the file is empty"])

    def test_an_interrupted_data_build_leaves_nothing(self):
        text = self.dir / "corpus.txt"
        text.write_text("several words of a text, again and again\n" * 400_000)
        inputs = [text] * 500
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(
                [TRELLIS, "data", "build", *inputs, "--output", "out"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.dir,
            )
            end = time.monotonic() + 60
            while time.monotonic() < end and not (self.dir / "out.bin.partial").exists():
                time.sleep(0.01)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, err[-1000:])
            self.assertEqual(out, "")
            self.assertEqual([path.name for path in self.dir.iterdir()], ["corpus.txt"])


class Sizes(Case):
    def test_sizes_without_meaning(self):
        for value in (10_000, 2_000_000_000):
            self.refused(
                "simulate",
                QUICKSTART,
                f"model.num_layers={value}",
                texts=[f"command line:model.num_layers: expected at most 1024, got {value}"],
            )
        self.refused(
            "simulate", LLAMA, "data.global_batch_size=2000000000", texts=["micro-batches per step"]
        )
        self.refused(
            "validate",
            LLAMA,
            "trainer.num_nodes=524288",
            texts=["expected a world size of at most 1048576"],
        )
        for verb in ("simulate", "memory"):
            self.refused(
                verb,
                QUICKSTART,
                "--steps",
                100_000_000,
                texts=["--steps: expected a number from 1 to 1000"],
            )
            self.refused(
                verb,
                QUICKSTART,
                "--nodes",
                2_000_000_000,
                texts=["--nodes: expected a number from 1 to 16384"],
            )
            self.refused(
                verb,
                QUICKSTART,
                "--threads",
                1_000_000,
                texts=["--threads: expected a number from 0 to 1024"],
            )

    def test_sizes_without_meaning_of_other_verbs(self):
        self.refused(
            "schedule", "--pp", 1000, "--micro-batches", 100_000, texts=["expected at most 4000000"]
        )
        self.refused(
            "schedule",
            "--pp",
            2_000_000_000,
            "--vpp",
            2_000_000_000,
            "--micro-batches",
            2_000_000_000,
            texts=["expected at most 4000000"],
        )
        self.refused(
            "data",
            "build",
            QUICKSTART,
            "--output",
            "out",
            "--workers",
            100_000,
            texts=["each is a thread"],
        )

    def test_twenty_thousand_unknown_keys(self):
        file = self.dir / "keys.yaml"
        file.write_text(
            QUICKSTART.read_text() + "".join(f"unknown_{i}: 1\n" for i in range(20_000))
        )
        error = self.refused(
            "validate", file, texts=["and 19950 more, 20000 in all", "keys.yaml: 20000 problems"]
        )
        self.assertEqual(error.count("unknown key"), 50)
        self.refused("simulate", file, texts=["and 19950 more, 20000 in all"])
        file.write_text("# a comment\n" * 1_000_000)
        self.refused("validate", file, texts=["is it the wrong file?"])


class Controls(Case):
    def test_no_control_character_reaches_a_terminal(self):
        file = self.dir / "run.yaml"
        quoted = json.dumps(HOSTILE)
        for text in (
            QUICKSTART.read_text().replace("name: quickstart", f"name: {quoted}", 1),
            QUICKSTART.read_text() + f"{quoted}: 1\n",
            QUICKSTART.read_text().replace("max_steps:", f"max_steps: {quoted} #", 1),
            f"a: ${{{HOSTILE!r}}}\n",
            HOSTILE,
        ):
            file.write_text(text)
            for verb in ("validate", "simulate"):
                result = self.trellis(verb, file, f"exp_manager.explicit_log_dir={self.dir / verb}")
                self.assertIn(result.returncode, (0, 2), result.stderr)
                self.fit_for_a_terminal(result.stdout + result.stderr)
        for args in (
            ["validate", QUICKSTART, f"{HOSTILE}=1"],
            ["validate", f"{HOSTILE}.yaml"],
            ["report", HOSTILE],
            ["describe", HOSTILE],
            [HOSTILE],
        ):
            self.fit_for_a_terminal(self.trellis(*args).stderr)

    def test_a_report_of_others_forges_no_line(self):
        run = self.dir / "run"
        self.assertEqual(
            self.trellis("simulate", QUICKSTART, f"exp_manager.explicit_log_dir={run}").returncode,
            0,
        )
        report = json.loads((run / "report.json").read_text())
        other = self.dir / "other"
        other.mkdir()
        for change in (
            lambda r: r.update(name=HOSTILE),
            lambda r: r.update(instance=HOSTILE),
            lambda r: r["simulated"].update(evidence=HOSTILE),
            lambda r: r["memory"]["ranks"][0].update(peak_phase=HOSTILE),
            lambda r: r["simulated"]["attribution"]["rows"][0].update(component=HOSTILE),
        ):
            changed = json.loads(json.dumps(report))
            change(changed)
            (other / "report.json").write_text(json.dumps(changed))
            for args in (
                ["report", other],
                ["diff", run, other],
                ["report", run, other],
                ["cost", other],
            ):
                result = self.trellis(*args)
                self.fit_for_a_terminal(result.stdout + result.stderr)
            self.assertEqual(
                json.loads(self.trellis("report", other, "--json").stdout)["report"]
                if "report"
                in (document := json.loads(self.trellis("report", other, "--json").stdout))
                else {key: document[key] for key in changed},
                changed,
            )

    def test_a_run_stays_below_exp_dir(self):
        for key in ("name", "version"):
            for value in ("../escaped", "a/../../escaped", "/tmp/escaped"):
                self.refused(
                    "simulate",
                    QUICKSTART,
                    "exp_manager.exp_dir=here",
                    f"exp_manager.{key}={value}",
                    texts=[
                        f"command line:exp_manager.{key}: expected a folder below "
                        "exp_manager.exp_dir"
                    ],
                )
        result = subprocess.run(
            [TRELLIS, "simulate", str(QUICKSTART), "exp_manager.exp_dir=here"],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=60,
            env={**os.environ, "TRELLIS_CACHE": "off", "NEMO_EXPM_VERSION": "../escaped"},
        )
        self.assertEqual(result.returncode, 2)
        self.assertIn("NEMO_EXPM_VERSION: expected a folder below", result.stderr)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_no_cell_of_a_table_is_a_formula(self):
        table = self.dir / "table.csv"
        model = self.dir / "=cmd.yaml"
        model.write_text(QUICKSTART.read_text())
        result = self.trellis(
            "sweep", "=cmd.yaml", "--top", 1, "--csv", table, "--nodes", 1, "--gbs", 16, timeout=300
        )
        self.assertEqual(result.returncode, 0, result.stderr[-1000:])
        rows = list(csv.DictReader(table.open()))
        self.assertGreater(len(rows), 0)
        for row in rows:
            for cell in row.values():
                if cell[:1] in "=+-@" and cell:
                    float(cell)  # numbers stay numbers


class Words(Case):
    def test_words_that_are_none_get_the_nearest(self):
        for args, near in (
            (["simulte"], "simulate"),
            (["data", "biuld"], "build"),
            (["simulate", QUICKSTART, "--instanc", "trn1.32xlarge"], "--instance"),
            (["simulate", QUICKSTART, "--step=3"], "--steps"),
            (["simulate", QUICKSTART, "--instance", "trn1.32xlarg"], "trn1.32xlarge"),
            (["describe", "trn2.48xlrge"], "trn2.48xlarge"),
        ):
            with self.subTest(args=args):
                error = self.refused(*args)
                self.assertIn(
                    f"id you mean `{near}`" if "xl" not in near else f"did you mean {near}?", error
                )

    def test_ranges_are_readable(self):
        for verb, option in (
            ("simulate", "--nodes"),
            ("memory", "--nodes"),
            ("sweep", "--nodes"),
            ("simulate", "--timeout"),
            ("schedule", "--pp"),
            ("cost", "--nodes"),
            ("verify", "--ranks"),
        ):
            error = self.refused(verb, QUICKSTART, option, 0)
            self.assertRegex(
                error,
                f"{option}: expected a number (of at least 1|above 0|from 1 to [0-9]+ .*), got 0\n",
            )
            self.assertNotRegex(error, "[0-9]{12}")


if __name__ == "__main__":
    unittest.main()
