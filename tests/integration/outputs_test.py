#!/usr/bin/env python3
"""What a run writes: standard output, files, caches, the folder of a run; on full disks, read-only
folders, with limits, by two processes."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
FULL = "No space left on device"
OUTPUT_FAILED = 7


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(temporary.name)
        self.addCleanup(temporary.cleanup)

    def environment(self, cache="off"):
        return {**os.environ, "TRELLIS_CACHE": str(cache)}

    def run_in(self, command, cache="off", **kwargs):
        return subprocess.run(
            [str(word) for word in command],
            text=True,
            cwd=self.dir,
            timeout=300,
            env=self.environment(cache),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs},
        )

    def trellis(self, *args, **kwargs):
        return self.run_in([TRELLIS, *args], **kwargs)

    def simulate(self, run, *args, **kwargs):
        return self.trellis(
            "simulate",
            QUICKSTART,
            f"exp_manager.explicit_log_dir={self.dir / run}",
            *args,
            **kwargs,
        )

    def fails(self, result, code, *texts):
        self.assertEqual(
            result.returncode, code, (result.stdout or "")[-500:] + result.stderr[-2000:]
        )
        for text in texts:
            self.assertIn(text, result.stderr)
        for text in ("Success", "internal error", "terminate"):
            self.assertNotIn(text, result.stderr)
        self.assertEqual(list(self.dir.rglob("*.partial")), [])


class StandardOutput(Case):
    VERBS = (
        ["--help"],
        ["--version"],
        ["validate", QUICKSTART],
        ["validate", QUICKSTART, "--json"],
        ["describe"],
        ["describe", "trn2.48xlarge", "--json"],
        ["collectives", "all_reduce", "--instance", "trn1.32xlarge", "--max", "1KiB"],
        ["kernel", "--list"],
        ["schedule", "--pp", "4", "--micro-batches", "8"],
    )

    def test_what_is_lost_on_a_full_device_is_an_error_of_every_verb(self):
        for verb in self.VERBS:
            with self.subTest(verb=verb), open("/dev/full", "w") as full:
                self.fails(
                    self.trellis(*verb, stdout=full),
                    OUTPUT_FAILED,
                    f"error: standard output: write failed: {FULL}",
                )

    def test_a_run_whose_report_cannot_be_printed_keeps_its_files(self):
        with open("/dev/full", "w") as full:
            self.fails(
                self.simulate("run", "--html", "page.html", stdout=full), OUTPUT_FAILED, FULL
            )
            self.fails(
                self.trellis(
                    "train",
                    QUICKSTART,
                    "--device",
                    "cpu",
                    "trainer.max_steps=1",
                    "exp_manager.explicit_log_dir=trained",
                    stdout=full,
                ),
                OUTPUT_FAILED,
                FULL,
            )
            self.fails(self.trellis("report", "run", "--json", stdout=full), OUTPUT_FAILED, FULL)
        self.assertIn("</html>", (self.dir / "page.html").read_text())
        for run in ("run", "trained"):
            json.loads((self.dir / run / "report.json").read_text())

    def test_a_closed_output_is_an_error_and_no_file_takes_its_place(self):
        result = self.run_in(
            ["sh", "-c", f'"{TRELLIS}" describe trn1.32xlarge --topology chips.dot >&-']
        )
        self.fails(result, OUTPUT_FAILED, "standard output: write failed: Bad file descriptor")
        self.assertTrue((self.dir / "chips.dot").read_text().startswith("graph"))

    def test_a_reader_that_goes_away_ends_the_program_as_usual(self):
        for restore in (True, False):  # SIGPIPE as a shell leaves it, and ignored, as Python does
            process = subprocess.Popen(
                [TRELLIS, "describe", "trn2.48xlarge", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                restore_signals=restore,
            )
            process.stdout.close()
            err = process.stderr.read()
            self.assertEqual((process.wait(), err), (-signal.SIGPIPE, b""), restore)
            process.stderr.close()


class Files(Case):
    def test_missing_folders_are_created(self):
        self.assertEqual(self.simulate("a/run", "--html", "b/c/page.html").returncode, 0)
        self.assertTrue((self.dir / "b/c/page.html").exists())
        self.assertEqual(self.trellis("report", "a/run", "--html", "d/page.html").returncode, 0)
        self.assertEqual(
            self.trellis("describe", "trn1.32xlarge", "--topology", "e/chips.dot").returncode, 0
        )
        self.assertEqual(
            self.trellis(
                "schedule", "--pp", 2, "--micro-batches", 2, "--svg", "f/schedule.svg"
            ).returncode,
            0,
        )
        self.assertEqual(self.trellis("kernel", "add", "--trace", "g/add.pftrace").returncode, 0)
        self.assertEqual(
            self.trellis(
                "gate",
                "a/run",
                "--baseline",
                "h/base.json",
                "--update-baseline",
                "--summary",
                "i/gate.md",
            ).returncode,
            0,
        )
        self.assertEqual(sorted(path.name for path in self.dir.iterdir()), list("abdefghi"))

    def test_a_place_that_cannot_be_written_is_found_before_the_work(self):
        bad = "/dev/null/page"
        self.fails(
            self.simulate("run", "--html", bad),
            2,
            f"--html: {bad}: cannot write here: Not a directory",
        )
        result = self.trellis(
            "sweep",
            QUICKSTART,
            "--nodes",
            1,
            "--out",
            "journal",
            "--csv",
            bad,
            "--svg",
            "new/front.svg",
            "--html",
            bad,
        )
        self.fails(
            result, 2, f"--csv: {bad}: cannot write here", f"--html: {bad}: cannot write here"
        )
        self.fails(
            self.trellis("accuracy", "training", "--write-validated", bad),
            2,
            f"--write-validated: {bad}",
        )
        self.assertEqual(list(self.dir.iterdir()), [], "neither a run nor a journal has begun")

    def test_a_library_that_is_missing_is_found_before_the_work(self):
        (self.dir / "bin").mkdir()
        (self.dir / "lib").mkdir()
        shutil.copy(TRELLIS, self.dir / "bin/trellis")
        for library in (TRELLIS.parents[1] / "lib").iterdir():
            if "parquet" not in library.name:
                (self.dir / "lib" / library.name).symlink_to(library)
        result = self.run_in(
            [
                self.dir / "bin/trellis",
                "sweep",
                QUICKSTART,
                "--nodes",
                1,
                "--out",
                "journal",
                "--parquet",
                "table.parquet",
            ]
        )
        self.fails(result, 2, "cannot load a part of the program", "libtrellis_parquet.so")
        self.assertFalse((self.dir / "journal").exists())

    def test_one_failing_output_does_not_discard_the_others(self):
        # A separate link: a program that renames over its name would replace the device of this
        # host.
        (self.dir / "full").symlink_to("/dev/full")
        result = self.trellis(
            "sweep",
            QUICKSTART,
            "--chips",
            4,
            *(
                word
                for axis in ("mbs=2", "zero1=true", "recompute=none", "tp=2", "pp=2", "vpp=1")
                for word in ("--only", axis)
            ),
            "--json",
            "--csv",
            "full",
            "--parquet",
            "table.parquet",
            "--svg",
            "front.svg",
            "--html",
            "page.html",
        )
        self.fails(result, OUTPUT_FAILED, f"--csv: /dev/full: write failed: {FULL}")
        self.assertEqual(json.loads(result.stdout)["schema"], "trellis.sweep/1")
        self.assertTrue((self.dir / "front.svg").read_text().rstrip().endswith("</svg>"))
        self.assertIn("</html>", (self.dir / "page.html").read_text())
        content = (self.dir / "table.parquet").read_bytes()
        self.assertEqual((content[:4], content[-4:]), (b"PAR1", b"PAR1"))
        result = self.simulate("run", "--html", "full")
        self.fails(result, OUTPUT_FAILED, f"--html: /dev/full: write failed: {FULL}")
        self.assertIn("Simulated step", result.stdout)
        self.assertTrue((self.dir / "run/report.json").exists())
        self.assertTrue((self.dir / "full").is_symlink())


class Disks(Case):
    """Its own file system, in its own mount namespace."""

    def on_tmpfs(self, size, script, options="", cache="off"):
        place = self.dir / "disk"
        place.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={size} tmpfs "{place}"'
        for private in (["unshare", "-m"], ["unshare", "-rm"]):
            if subprocess.run([*private, "sh", "-c", mount], capture_output=True).returncode == 0:
                break
        else:
            self.skipTest("this host gives no mount namespace")
        script = script.format(trellis=TRELLIS, quickstart=QUICKSTART, disk=place)
        return self.run_in([*private, "sh", "-c", f"{mount} && {{ {script}\n}}"], cache=cache)

    def test_a_full_disk_is_named_wherever_a_run_writes(self):
        for size in (4, 16, 64):  # KiB: it fills at another file each time
            with self.subTest(size=size):
                result = self.on_tmpfs(
                    f"{size}k",
                    '"{trellis}" simulate "{quickstart}" '
                    'exp_manager.explicit_log_dir="{disk}/run" --no-cache',
                )
                self.fails(result, OUTPUT_FAILED, "/disk/run/", FULL)
                self.assertEqual(result.stdout, "")

    def test_a_full_disk_is_named_when_training_and_building_data(self):
        result = self.on_tmpfs(
            "64k",
            'build() {{ "{trellis}" data build "{quickstart}" --output "{disk}/$1/data" >&2; '
            "echo $?; }}\n"
            'build first; dd if=/dev/zero of="{disk}/fill" 2>/dev/null; build second\n'
            '"{trellis}" train "{quickstart}" --device cpu trainer.max_steps=1 '
            'exp_manager.explicit_log_dir="{disk}/run" >&2; echo $?',
        )
        self.assertEqual(
            result.stdout.split(), ["0", str(OUTPUT_FAILED), str(OUTPUT_FAILED)], result.stderr
        )
        self.assertEqual(result.stderr.count(FULL), 2, result.stderr)
        self.assertNotIn("Success", result.stderr)

    def test_a_full_cache_costs_only_time(self):
        result = self.on_tmpfs(
            "1k",
            '"{trellis}" simulate "{quickstart}" exp_manager.explicit_log_dir=run',
            cache=self.dir / "disk",
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("the result cannot be kept"), 1)
        self.assertEqual(result.stderr.count("timings cannot be kept"), 1)
        self.assertIn(FULL, result.stderr)

    def test_a_read_only_folder_is_named(self):
        read_only = 'mount -o remount,ro "{disk}"; '
        self.fails(
            self.on_tmpfs(
                "1m",
                read_only
                + '"{trellis}" simulate "{quickstart}" exp_manager.explicit_log_dir="{disk}/run"',
            ),
            2,
            "/disk/run",
            "Read-only file system",
        )
        self.fails(
            self.on_tmpfs(
                "1m",
                read_only
                + '"{trellis}" simulate "{quickstart}" exp_manager.explicit_log_dir=run --html '
                '"{disk}/page.html"',
            ),
            2,
            "--html: ",
            "Read-only file system",
        )
        self.assertFalse((self.dir / "run").exists())
        kept = self.on_tmpfs(
            "1m",
            read_only + '"{trellis}" simulate "{quickstart}" exp_manager.explicit_log_dir=run',
            cache=self.dir / "disk",
        )
        self.assertEqual(kept.returncode, 0, kept.stderr)
        self.assertIn("Read-only file system", kept.stderr)

    def test_a_limit_of_the_file_size_is_named(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

        self.fails(self.simulate("run", preexec_fn=limit), OUTPUT_FAILED, "/run/", "File too large")
        with open(self.dir / "out.json", "w") as out:
            self.fails(
                self.trellis("describe", "trn2.48xlarge", "--json", stdout=out, preexec_fn=limit),
                OUTPUT_FAILED,
                "standard output: write failed: File too large",
            )


class Caches(Case):
    """Swapped, cut off, changed, foreign and replaced cache files: results are equal, the files are
    made again."""

    def mutants(self, files):
        contents = {file: file.read_bytes() for file in files}
        names = list(contents)

        def flipped(content, place):
            place %= len(content)
            return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

        yield "swapped", {name: contents[names[i - 1]] for i, name in enumerate(names)}
        yield "cut off", {name: content[: len(content) // 2] for name, content in contents.items()}
        for place in (40, -1):
            yield (
                f"flipped at {place}",
                {name: flipped(content, place) for name, content in contents.items()},
            )
        yield (
            "NUL",
            {
                name: content[:100] + b"\0\0" + content[102:]
                if content[100:102] != b"\0\0"
                else content[:-2]
                for name, content in contents.items()
            },
        )
        yield "foreign", {name: b'{"files":{}}' for name in names}
        yield "folders", {name: None for name in names}

    def check(self, entries, run):
        """`run(i)`: the answer of run number i, and what it said on stderr."""
        expected, _ = run(0)
        files = sorted(entries())
        self.assertTrue(files)
        whole = {file: file.read_bytes() for file in files}
        self.assertEqual(run(1)[0], expected)
        for i, (kind, contents) in enumerate(self.mutants(files)):
            if len(files) == 1 and kind == "swapped":
                continue
            for file, content in contents.items():
                file.unlink()
                file.mkdir() if content is None else file.write_bytes(content)
            answer, said = run(i + 2)
            self.assertEqual(answer, expected, kind)
            warnings = said.count("a cached result is ignored")
            if kind == "folders":  # a cache that cannot be written is not asked again
                self.assertTrue(0 < warnings <= len(files), (kind, warnings))
            else:
                self.assertEqual(warnings, len(files), kind)
            for file, content in whole.items():
                if file.is_dir():
                    file.rmdir()
                    file.write_bytes(content)
                self.assertTrue(file.is_file(), kind)

    def test_timings(self):
        def run(i):
            result = self.simulate(f"run{i}", "--no-cache", cache=self.dir / "cache")
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            return result.stdout, result.stderr

        self.check(
            lambda: [path for path in (self.dir / "cache").rglob("*") if path.is_file()], run
        )

    def test_kept_runs(self):
        def run(i):
            result = self.simulate(f"run{i}", cache=self.dir / "cache")
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            return result.stdout, result.stderr

        # Next to it lies its trace, where that is larger than a MiB.
        self.check(lambda: list((self.dir / "cache/trellis_kept_runs").glob("*.run")), run)

    def test_folders_of_the_user_stay(self):
        for i in range(1, 71):
            (self.dir / f"runs/user{i}").mkdir(parents=True)
            (self.dir / f"runs/user{i}/notes.txt").write_text("of the user")
        self.assertEqual(self.simulate("o1", cache=self.dir).returncode, 0)
        self.assertEqual(len(list((self.dir / "runs").rglob("notes.txt"))), 70)


class Locks(Case):
    def test_a_second_process_in_a_run_folder_is_refused_and_names_the_first(self):
        run, checkpoints = self.dir / "run", self.dir / "checkpoints"
        saves = [
            "exp_manager.create_checkpoint_callback=true",
            "exp_manager.checkpoint_callback_params={monitor: step, mode: max, "
            f"every_n_train_steps: 100000, dirpath: {checkpoints}}}",
        ]
        first = subprocess.Popen(
            [
                TRELLIS,
                "train",
                QUICKSTART,
                "--device",
                "cpu",
                "trainer.max_steps=100000",
                f"exp_manager.explicit_log_dir={run}",
                *saves,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.dir,
            env=self.environment(),
        )
        metrics = run / "metrics.jsonl"
        end = time.monotonic() + 120
        while time.monotonic() < end and not (metrics.exists() and metrics.read_text()):
            time.sleep(0.05)
        result = self.simulate("run")
        self.fails(
            result,
            2,
            f"{run}: another process writes there now: process {first.pid} on host ",
            "trellis train",
            "wait for its end, or choose another place",
        )
        (checkpoints / "under_way.ckpt-unfinished").write_text("1")
        log = f"exp_manager.explicit_log_dir={self.dir / 'other'}"
        result = self.trellis("train", QUICKSTART, "--device", "cpu", log, *saves)
        self.fails(result, 2, f"{checkpoints}: another process writes there now: ", str(first.pid))
        self.assertTrue((checkpoints / "under_way.ckpt-unfinished").exists())
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=120)
        self.assertEqual(first.returncode, 130, err[-2000:])
        json.loads((run / "report.json").read_text())
        self.assertEqual(
            [path.name for path in run.iterdir() if path.is_dir() or path.name.startswith(".")],
            [".trellis.run"],
            "the first one's files were not moved, its lock is gone",
        )
        self.assertEqual(self.simulate("run").returncode, 0)
        self.assertTrue((run / "run_0/metrics.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
