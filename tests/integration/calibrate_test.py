#!/usr/bin/env python3
"""`trellis calibrate` as a user calls it: measurements made from simulations with known factors,
held-out rows, `simulate --calibration`, bad input. Environment: TRELLIS."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
COMPUTE, COMMUNICATION = 1.25, 0.7
# Their shares of exposed communication differ.
RUNS = {
    "tp2": ["distributed_strategy.tensor_model_parallel_size=2"],
    "wide": [
        "distributed_strategy.tensor_model_parallel_size=2",
        "model.hidden_size=1024",
        "model.ffn_hidden_size=4096",
    ],
    "tp1": [
        "distributed_strategy.tensor_model_parallel_size=1",
        "distributed_strategy.sequence_parallel=false",
    ],
    "layers": ["model.num_layers=8"],
}


class Calibrate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.dir = pathlib.Path(temporary.name)
        lines = ["config,instance,overrides,step_s,use,id"]
        for name, overrides in RUNS.items():
            report = json.loads(
                cls.ok("simulate", QUICKSTART, *overrides, "--instance", "trn1.32xlarge", "--json")
            )
            rank = report["simulated"]["attribution"]["rank"]
            row = next(row for row in report["simulated"]["breakdown"] if row["rank"] == rank)
            waits = sum(row[f"exposed_{axis}_ps"] for axis in ("tp", "pp", "dp"))
            step = ((row["total_ps"] - waits) * COMPUTE + waits * COMMUNICATION) * 1e-12
            use = "test" if name == "layers" else "fit"
            row = [QUICKSTART, "trn1.32xlarge", " ".join(overrides), f"{step:.9f}", use, name]
            lines.append(",".join(map(str, row)))
        (cls.dir / "mine.csv").write_text("\n".join(lines) + "\n")

    @classmethod
    def trellis(cls, *args):
        return subprocess.run(
            [TRELLIS, *map(str, args)],
            capture_output=True,
            text=True,
            cwd=cls.dir,
            timeout=300,
            env={**os.environ, "TRELLIS_CACHE": "off"},
        )

    @classmethod
    def ok(cls, *args):
        result = cls.trellis(*args)
        if result.returncode != 0:
            raise AssertionError(f"{args}: {result.returncode}\n{result.stderr[-2000:]}")
        return result.stdout

    def test_known_factors_are_found_and_applied(self):
        document = json.loads(self.ok("calibrate", "mine.csv", "--json", "--write", "mine.yaml"))
        self.assertEqual(document["basis"], {"compute": "own", "communication": "own"})
        self.assertAlmostEqual(document["factors"]["compute"], COMPUTE, places=3)
        self.assertAlmostEqual(document["factors"]["communication"], COMMUNICATION, places=2)
        self.assertEqual([row["id"] for row in document["test"]], ["layers"])
        self.assertAlmostEqual(document["test"][0]["error"], 0, places=3)
        self.assertIn("Held-out steps", self.ok("calibrate", "mine.csv"))

        report = json.loads(
            self.ok("simulate", QUICKSTART, *RUNS["layers"], "--calibration", "mine.yaml", "--json")
        )
        measured = document["test"][0]["measured_s"] * 1e3
        self.assertAlmostEqual(report["calibrated"]["step_time_ms"] / measured, 1, places=3)
        self.assertEqual(report["calibrated"]["evidence"], "fitted (user)")
        self.assertNotAlmostEqual(
            report["step_time_ms"] / measured, 1, places=2, msg="the simulated step stays as it was"
        )
        text = self.ok("simulate", QUICKSTART, *RUNS["layers"], "--calibration", "mine.yaml")
        self.assertRegex(
            text,
            r"Calibrated step [\d.]+ ms \(range .* ms\), [\d,]+ tokens/s, evidence: fitted "
            r"\(user\): compute × 1\.25, communication × 0\.7",
        )

    def test_bad_input_is_named(self):
        text = (self.dir / "mine.csv").read_text()
        for broken, expected in (
            (text.replace(",fit,tp1", ",,tp1"), "broken.csv:4:use: is missing"),
            (
                text.replace("trn1.32xlarge", "trn9", 1),
                "broken.csv:2:instance: unknown machine 'trn9'",
            ),
            (text.replace(",fit,", ",test,"), "0 rows of use fit: expected at least 2"),
            (text.replace("num_layers", "num_layrs"), "num_layrs"),
        ):
            (self.dir / "broken.csv").write_text(broken)
            result = self.trellis("calibrate", "broken.csv")
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr[-1000:])
            self.assertIn(expected, result.stderr)
        (self.dir / "broken.yaml").write_text("schema: trellis.calibration/9\n")
        result = self.trellis("simulate", QUICKSTART, "--calibration", "broken.yaml")
        self.assertEqual(result.returncode, 2)
        self.assertIn("broken.yaml:1:schema: expected trellis.calibration/2", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
