#!/usr/bin/env python3
"""`trellis report`, `diff`, `gate` and `cost` on real simulated runs, as their users meet them.
Environment: TRELLIS, the program."""

import csv
import json
import re
import sys
import unittest
import xml.etree.ElementTree

from report_case import PRICES, QUICKSTART, Case


class Reports(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = cls.simulate("base")
        cls.again = cls.simulate("again")
        cls.longer = cls.simulate("longer", "data.global_batch_size=32")
        cls.no_sp = cls.simulate("no_sp", "distributed_strategy.sequence_parallel=false")

    def test_report_of_one_run_and_of_several(self):
        text = self.ok("report", self.base)
        for part in (
            "The step of rank",
            "MFU",
            "HFU",
            "Device memory of the fullest rank",
            "Busiest 5 of",
            "Files in",
            "Communication of that rank",
            "hidden",
        ):
            self.assertIn(part, text)
        document = self.document("trellis.run_report/1", "report", self.base)
        summary = document["summary"]
        self.assertEqual(sum(part["time_ps"] for part in summary["parts"]), summary["step_time_ps"])
        for row in summary["communication"]:
            self.assertEqual(row["hidden_ps"] + row["exposed_ps"], row["transfer_ps"])
            self.assertGreaterEqual(row["hidden_ps"], 0)
        if "attribution" in document["simulated"]:
            for table in ("phases", "operators", "components"):
                self.assertEqual(
                    sum(row["time_ps"] for row in summary[table]), summary["step_time_ps"], table
                )
        columns = self.ok("report", self.base, self.longer)
        self.assertRegex(columns, r"base +longer")
        self.assertRegex(columns, r"micro-batches +4 +8")
        self.assertEqual(
            len(self.document("trellis.run_reports/1", "report", self.base, self.longer)["runs"]), 2
        )

    def test_diff_of_equal_runs_says_so(self):
        self.assertIn("Equal", self.ok("diff", self.base, self.again))
        self.assertTrue(self.document("trellis.diff/1", "diff", self.base, self.again)["equal"])

    def test_diff_adds_up_and_names_the_setting(self):
        for other, key in (
            (self.longer, "data.global_batch_size"),
            (self.no_sp, "distributed_strategy.sequence_parallel"),
        ):
            diff = self.document("trellis.diff/1", "diff", self.base, other)
            self.assertNotEqual(diff["step_change_ps"], 0)
            for name, rows in diff["step"].items():
                if name != "phase_of_programs":
                    self.assertEqual(
                        sum(row["change_ps"] for row in rows), diff["step_change_ps"], name
                    )
            self.assertEqual([change["key"] for change in diff["settings"]], [key])
            self.assertIn(key, self.ok("diff", self.base, other))
            if diff["attributed"]:
                self.assertGreaterEqual(diff["explained_share"], 0.99)
            backwards = self.document("trellis.diff/1", "diff", other, self.base)
            self.assertEqual(backwards["step_change_ps"], -diff["step_change_ps"])

    def check_gate_names(self, key, run, baseline):
        """The gate fails, and its text, JUnit and SARIF files name `key` as the cause."""
        gate = self.fails(
            6,
            "gate",
            run,
            "--baseline",
            baseline,
            "--max-regression",
            "0%",
            "--junit",
            "gate.xml",
            "--sarif",
            "gate.sarif",
            texts=["Root cause: ", key],
        )
        self.assertLess(
            gate.stdout.index("Root cause: "),
            gate.stdout.index("Largest part of the change"),
        )
        failure = xml.etree.ElementTree.parse(self.dir / "gate.xml").find(
            ".//testcase[@name='step time']/failure"
        )
        self.assertIn(key, failure.text)
        results = json.loads((self.dir / "gate.sarif").read_text())["runs"][0]["results"]
        self.assertIn("step time", [result["ruleId"] for result in results])

    def test_the_root_cause_of_a_slow_part_or_another_number_comes_first(self):
        baseline = self.dir / "root.json"
        self.ok("gate", self.base, "--baseline", baseline, "--update-baseline")
        cases = {
            "slow_core": (["--slow", "core:3=1.3"], "slow", "core:3", ("1", "1.3")),
            "slow_link": (
                ["--slow", "link:node0.chip0.neuron_link_east=16"],
                "slow",
                "link:node0.chip0.neuron_link_east",
                ("1", "16"),
            ),
            "other_number": (
                ["--set", "launch.program_launch=100 us"],
                "hardware",
                "launch.program_launch",
                (None, "100 us"),
            ),
        }
        for name, (options, table, key, (before, after)) in cases.items():
            with self.subTest(name):
                run = self.simulate(name, *options)
                diff = self.document("trellis.diff/1", "diff", self.base, run)
                self.assertEqual(diff["settings"], [])
                self.assertEqual(
                    [(row["key"], row["after"]) for row in diff[table]], [(key, after)]
                )
                if before:
                    self.assertEqual(diff[table][0]["before"], before)
                self.assertIsNotNone(diff["stage"])
                self.assertEqual(len(diff["root_causes"]), 1)
                self.assertIn(key, diff["root_causes"][0])
                text = self.ok("diff", self.base, run)
                self.assertTrue(text.startswith("Root cause: "), text[:200])
                self.assertNotIn("Machine and configuration: the same", text)
                if diff["step_change_ps"] > 0:
                    self.check_gate_names(key, run, baseline)
        # The slow core's own work explains the step: its operators, compared with those of its
        # equals.
        diff = self.document("trellis.diff/1", "diff", self.base, self.dir / "slow_core")
        self.assertEqual((diff["rank_after"], diff["rank_before"]), (3, 0))
        for row in diff["step"]["cause"]:
            self.assertTrue(
                row["before_ps"] > 0 or row["change_ps"] < 0.01 * diff["step_change_ps"], row
            )

    def test_gate_of_an_edited_configuration_says_what_the_edit_costs(self):
        baseline = self.dir / "edited.json"
        self.ok("gate", self.base, "--baseline", baseline, "--update-baseline")
        refused = self.fails(
            2,
            "gate",
            self.no_sp,
            "--baseline",
            baseline,
            "--junit",
            "refused.xml",
            texts=["distributed_strategy.sequence_parallel", "--allow-config-change"],
        )
        self.assertEqual(refused.stdout, "")
        self.assertIn(
            "distributed_strategy.sequence_parallel",
            xml.etree.ElementTree.parse(self.dir / "refused.xml").find(".//testcase/error").text,
        )
        text = self.ok(
            "gate",
            self.no_sp,
            "--baseline",
            baseline,
            "--allow-config-change",
            "--max-regression",
            "100%",
            "--max-memory-growth",
            "100%",
        )
        for part in (
            "Root cause: setting distributed_strategy.sequence_parallel: true → false",
            "By phase, component and operator",
            "Largest part of the change",
        ):
            self.assertIn(part, text)

    def test_equal_ranks_are_one_row(self):
        """Of the tables and of the trace: each class once, with its number of ranks; the document
        has all digits."""
        report = json.loads((self.base / "report.json").read_text())
        text = self.ok("report", self.base)
        for title in ("Where the simulated step went", "Device memory at its peak, MiB"):
            lines = text[text.index(title) :].split("\n\n")[0].split("\n")[2:]
            cells = [
                line.split() for line in lines if line.strip()[:1].isdigit()
            ]  # below: what a part means
            self.assertEqual(sum(int(row[1]) for row in cells), report["world_size"], title)
            self.assertEqual(len({tuple(row[2:]) for row in cells}), len(cells), title)
        for number in re.findall(r"\d+\.\d+(?= ms\b)", text):
            self.assertLessEqual(len(number.replace(".", "").lstrip("0")), 5, number)
        many = self.simulate(
            "many",
            "--nodes",
            "4",
            "trainer.num_nodes=4",
            "trainer.devices=32",
            "data.global_batch_size=128",
            "--trace-format",
            "text",
        )
        names = set(
            re.findall(
                r"\b(rank \d+ \(PP[^)]*\)(?: \(and \d+ equal ranks?\))?)\"?/",
                (many / "trace.txt").read_text(),
            )
        )
        self.assertEqual(
            sum(1 + int((re.search(r"and (\d+)", name) or [0, 0])[1]) for name in names), 128, names
        )

    def test_diff_refuses_what_is_no_report(self):
        (self.dir / "other.json").write_text(json.dumps({"schema": "trellis.run_report/9"}))
        self.fails(
            2,
            "diff",
            self.base,
            "other.json",
            texts=["other.json", "trellis.run_report/9", "trellis.run_report/1"],
        )
        (self.dir / "cut.json").write_text((self.base / "report.json").read_text()[:5000])
        self.fails(2, "diff", self.base, "cut.json", texts=["cut.json", "cut off"])
        self.fails(2, "diff", self.base, self.dir / "none", texts=["no such report"])
        self.trellis(
            "train",
            QUICKSTART,
            "--device",
            "cpu",
            "trainer.max_steps=1",
            f"exp_manager.explicit_log_dir={self.dir / 'cpu'}",
        )
        self.fails(2, "diff", self.base, self.dir / "cpu", texts=["nothing was simulated"])

    def slower_run(self):
        """A slower step of the same configuration: what a change of the model's code would give."""
        slower = self.dir / "slower"
        slower.mkdir()
        report = json.loads((self.base / "report.json").read_text())
        report["simulated"]["step_time_ps"] += 1_000_000_000
        rows = report["simulated"].get("attribution", {"rows": []})["rows"]
        rows.append(
            {
                "phase": "forward",
                "component": "model.layers.*.mlp",
                "operator": "all_reduce",
                "kind": "comm_tp",
                "time_ps": 1_000_000_000,
                "count": 8,
            }
        )
        for row in report["simulated"]["breakdown"]:
            row["exposed_tp_ps"] += 1_000_000_000
            row["total_ps"] += 1_000_000_000
        (slower / "report.json").write_text(json.dumps(report))
        (slower / "hparams.yaml").write_text((self.base / "hparams.yaml").read_text())
        return slower

    def test_gate(self):
        baseline = self.dir / "perf.json"
        self.fails(2, "gate", self.base, "--baseline", baseline, texts=["--update-baseline"])
        self.ok("gate", self.base, "--baseline", baseline, "--update-baseline")
        written = baseline.read_bytes()
        self.ok("gate", self.again, "--baseline", baseline, "--update-baseline")
        self.assertEqual(
            baseline.read_bytes(), written, "a baseline depends on nothing but what was simulated"
        )
        self.assertTrue(
            self.document(
                "trellis.gate/1",
                "gate",
                self.again,
                "--baseline",
                baseline,
                "--max-regression",
                "0%",
                "--max-memory-growth",
                "0%",
            )["passed"]
        )
        self.fails(
            2,
            "gate",
            self.longer,
            "--baseline",
            baseline,
            texts=["data.global_batch_size", "--update-baseline"],
        )

    def test_gate_of_a_slower_run(self):
        baseline = self.dir / "faster.json"
        self.ok("gate", self.base, "--baseline", baseline, "--update-baseline")
        slower = self.slower_run()
        result = self.fails(
            6,
            "gate",
            slower,
            "--baseline",
            baseline,
            "--summary",
            "summary.md",
            texts=["Gate FAILED", "Root cause:", "Largest part of the change:"],
        )
        self.assertIn("+1.000 ms", result.stdout)
        summary = (self.dir / "summary.md").read_text()
        self.assertIn("| step time |", summary)
        self.ok("gate", slower, "--baseline", baseline, "--max-regression", "50%")
        self.fails(
            2,
            "gate",
            self.base,
            "--baseline",
            baseline,
            "--summary",
            "-",
            env={"GITHUB_STEP_SUMMARY": ""},
            texts=["GITHUB_STEP_SUMMARY"],
        )
        job = self.dir / "job.md"
        job.write_text("before\n")
        self.ok(
            "gate",
            self.base,
            "--baseline",
            baseline,
            "--summary",
            "-",
            env={"GITHUB_STEP_SUMMARY": str(job)},
        )
        self.assertTrue(job.read_text().startswith("before\n### Simulated step: gate passed"))

    def test_cost_of_a_run_and_of_a_configuration(self):
        plan = [
            "--prices",
            PRICES,
            "--tokens",
            "1B",
            "--mtbf",
            "30d",
            "--checkpoint-time",
            "30s",
            "--restart-time",
            "10min",
        ]
        of_run = self.document("trellis.cost/1", "cost", self.base, *plan)
        of_config = self.document(
            "trellis.cost/1",
            "cost",
            QUICKSTART,
            f"exp_manager.explicit_log_dir={self.dir / 'by_cost'}",
            *plan,
        )
        self.assertEqual(of_run["cases"], of_config["cases"])
        case = of_run["cases"][0]
        report = json.loads((self.base / "report.json").read_text())
        steps = -(-(10**9) // report["tokens_per_step"])
        self.assertEqual(of_run["steps"], steps)
        self.assertAlmostEqual(
            case["steps_s"], steps * report["simulated"]["step_time_ps"] * 1e-12, places=6
        )
        parts = sum(
            case[key]
            for key in ("steps_s", "validation_s", "checkpoints_s", "lost_work_s", "restarts_s")
        )
        self.assertAlmostEqual(parts, case["total_s"], places=6)
        self.assertAlmostEqual(case["node_hours"], case["total_s"] / 3600, places=9)
        self.assertAlmostEqual(case["cost"]["on_demand"], case["node_hours"] * 21.5, places=6)
        text = self.ok("cost", self.base, *plan, "--error", "10%")
        for part in (
            "node-hours",
            "2026-11-22",
            "What dominates: training steps",
            "EXAMPLE, replace it",
            "fast",
            "slow",
        ):
            self.assertIn(part, text)

    def test_cost_says_what_unused_cores_cost(self):
        cost = self.document(
            "trellis.cost/1", "cost", self.base, "--prices", PRICES, "--steps", 1000
        )
        self.assertEqual((cost["logical_cores"], cost["unused_core_share"]), (32, 0.75))  # 8 ranks
        case = cost["cases"][0]
        self.assertEqual(
            case["cost_of_unused_cores"],
            {name: 0.75 * amount for name, amount in case["cost"].items()},
        )
        unused = "24 of 32 logical cores run no rank: 75.00 % of what is paid for"
        self.assertIn(unused, self.ok("cost", self.base, "--prices", PRICES, "--steps", 1000))
        report = json.loads((self.base / "report.json").read_text())
        self.assertEqual(
            (report["simulated"]["logical_cores"], report["unused_core_share"]), (32, 0.75)
        )
        self.assertIn(unused, self.ok("report", self.base))
        self.assertRegex(
            self.ok("report", self.base, self.again), r"cores without a rank +24 of 32 +24 of 32"
        )
        self.ok("report", self.base, "--html", "run.html")
        self.assertIn('"unused_core_share":0.75', (self.dir / "run.html").read_text())
        older = {key: value for key, value in report.items() if key != "unused_core_share"}
        del older["simulated"]["logical_cores"]
        (self.dir / "older.json").write_text(json.dumps(older))
        self.assertIn(
            "does not say how many cores",
            self.ok("cost", self.dir / "older.json", "--prices", PRICES, "--steps", 1000),
        )
        self.assertNotIn("run no rank", self.ok("report", self.dir / "older.json"))

    def test_cost_of_several_instances_in_one_table_with_csv_and_html(self):
        args = [
            "cost",
            QUICKSTART,
            f"exp_manager.explicit_log_dir={self.dir / 'instances'}",
            "--prices",
            PRICES,
            "--steps",
            1000,
            "--error",
            "10%",
            "--instance",
            "trn1.32xlarge,trn2.48xlarge",
            "--csv",
            "out/cost.csv",
            "--html",
            "cost.html",
        ]
        (self.dir / "out").mkdir(exist_ok=True)
        document = self.document("trellis.costs/1", *args)
        self.assertEqual(
            [(run["instance"], run["unused_core_share"]) for run in document["runs"]],
            [("trn1.32xlarge", 0.75), ("trn2.48xlarge", 56 / 64)],
        )
        text = self.ok(*args)
        costs = [
            float(line.split(" on_demand ")[1].split()[0].replace(",", ""))
            for line in text.splitlines()
            if " on_demand " in line
        ]
        self.assertEqual(len(costs), 2)
        self.assertEqual(costs, sorted(costs), "the cheapest first")
        with open(self.dir / "out/cost.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(
            len(rows), 3 * sum(len(run["prices"]) for run in document["runs"])
        )  # expected, fast, slow
        for row in rows:
            run = next(run for run in document["runs"] if run["instance"] == row["instance"])
            case = next(case for case in run["cases"] if case["name"] == row["case"])
            self.assertEqual(float(row["cost"]), case["cost"][row["paying"]])
            self.assertEqual(
                float(row["cost_of_unused_cores"]), case["cost_of_unused_cores"][row["paying"]]
            )
        page = (self.dir / "cost.html").read_text()
        self.assertIn('"schema":"trellis.costs/1"', page)
        self.assertIn("drawMoney", page)

    def test_cost_of_instances_that_cannot_run_it_or_have_no_price(self):
        small = (
            PRICES.read_text() + "  trn1.2xlarge:\n    on_demand: {per_hour: 1.34, source: test}\n"
        )
        (self.dir / "small.yaml").write_text(small)
        text = self.ok(
            "cost",
            QUICKSTART,
            f"exp_manager.explicit_log_dir={self.dir / 'small'}",
            "--prices",
            self.dir / "small.yaml",
            "--steps",
            10,
            "--instance",
            "trn1.2xlarge,trn1.32xlarge",
        )
        self.assertRegex(text, r"not possible on trn1.2xlarge: .*8 ranks per node")
        self.fails(
            2,
            "cost",
            QUICKSTART,
            "--prices",
            PRICES,
            "--steps",
            10,
            "--instance",
            "trn1.32xlarge,trn9",
            texts=["no price for trn9"],
        )

    def test_cost_refuses_bad_input(self):
        undated = self.dir / "undated.yaml"
        undated.write_text(PRICES.read_text().replace("date: 2026-11-22", "# no date", 1))
        self.fails(
            2,
            "cost",
            self.base,
            "--prices",
            undated,
            "--steps",
            "10",
            texts=["undated.yaml", "date", "worth nothing"],
        )
        self.fails(2, "cost", self.base, "--prices", PRICES, texts=["--steps N or --tokens N"])
        self.fails(2, "cost", self.base, "--prices", PRICES, "--tokens", "2X", texts=["--tokens"])

    def test_cost_refuses_bad_failures_and_files(self):
        self.fails(
            2,
            "cost",
            self.base,
            "--prices",
            PRICES,
            "--steps",
            "10",
            "--mtbf",
            "30d",
            texts=["--checkpoint-time"],
        )
        self.fails(
            2,
            "cost",
            self.base,
            "--prices",
            PRICES,
            "--steps",
            "10",
            "--mtbf",
            "30",
            texts=["--mtbf", "unit"],
        )
        self.fails(
            2,
            "cost",
            self.base,
            "--prices",
            self.dir / "none.yaml",
            "--steps",
            "10",
            texts=["none.yaml"],
        )
        self.fails(
            2,
            "cost",
            self.base,
            "--prices",
            PRICES,
            "--steps",
            "10",
            "--instance",
            "trn2.48xlarge",
            texts=["finished run"],
        )


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=1)
