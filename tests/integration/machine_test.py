#!/usr/bin/env python3
"""The verbs about the machine as their users meet them: kernel, collectives, accuracy, selfcheck;
good runs, bad input, exit codes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def trellis(self, *args):
        return subprocess.run(
            [TRELLIS, *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=120
        )

    def document(self, *args):
        result = self.trellis(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return json.loads(result.stdout)

    def fails(self, code, texts, *args):
        result = self.trellis(*args)
        self.assertEqual(result.returncode, code, result.stderr[-2000:])
        self.assertEqual(result.stdout, "")
        for text in texts:
            self.assertIn(text, result.stderr)


class Kernel(Case):
    def test_the_catalogue_lists_what_runs(self):
        names = [k["name"] for k in self.document("kernel", "--list")["kernels"]]
        for name in (
            "matmul",
            "transpose",
            "softmax",
            "rms_norm",
            "layer_norm",
            "flash_attention",
            "flash_attention_backward",
            "embedding",
            "adamw",
            "routing",
            "quantise",
        ):
            self.assertIn(name, names)

    def test_every_kernel_runs_on_every_generation_at_its_defaults(self):
        for kernel in self.document("kernel", "--list")["kernels"]:
            for instance in ("trn1.32xlarge", "trn2.48xlarge"):
                timing = self.document("kernel", kernel["name"], "--instance", instance)
                self.assertGreater(timing["device_time_us"], 0, kernel["name"])
                self.assertLessEqual(timing["device_mfu"], 1, kernel["name"])

    def test_time_contains_the_device_time_and_both_bounds(self):
        timing = self.document("kernel", "matmul", "--m", 2048, "--k", 2048, "--n", 2048)
        self.assertGreater(timing["time_us"], timing["device_time_us"])
        self.assertGreater(timing["device_time_us"], timing["compute_bound_us"])
        self.assertGreater(timing["device_time_us"], timing["memory_bound_us"])
        self.assertIn(
            timing["bound_by"], ("tensor", "vector", "scalar", "gpsimd", "dma", "hbm", "launch")
        )
        self.assertGreater(timing["dma_bytes"], 3 * 2 * 2048**2 - 1)

    def test_two_cores_are_faster_than_one(self):
        one, two = (
            self.document(
                "kernel", "matmul", "--m", 4096, "--k", 4096, "--n", 4096, "--cores", cores
            )["device_time_us"]
            for cores in (1, 2)
        )
        self.assertLess(two, one)
        self.assertGreater(two, one / 2)

    def test_a_trace_is_written(self):
        self.assertEqual(
            self.trellis("kernel", "softmax", "--trace", "softmax.pftrace").returncode, 0
        )
        self.assertGreater((self.dir / "softmax.pftrace").stat().st_size, 100)

    def test_a_hardware_number_can_be_changed_more_than_once(self):
        slow = self.document(
            "kernel",
            "add",
            "--set",
            "core.dma.engine_rate=5 GB/s",
            "--set",
            "chip.hbm_bandwidth=1 TB/s",
        )
        self.assertGreater(
            slow["device_time_us"], 2 * self.document("kernel", "add")["device_time_us"]
        )

    def test_mistakes_are_named(self):
        self.fails(2, ["matmull", "did you mean", "matmul"], "kernel", "matmull")
        self.fails(2, ["--list"], "kernel")
        self.fails(
            2,
            ["trn2.49xlarge", "did you mean trn2.48xlarge?"],
            "kernel",
            "matmul",
            "--instance",
            "trn2.49xlarge",
        )
        self.fails(2, ["m"], "kernel", "matmul", "--m", 0)
        self.fails(2, ["k"], "kernel", "matmul", "--k", -1)
        self.fails(2, ["bf17"], "kernel", "matmul", "--dtype", "bf17")
        self.fails(3, ["HBM"], "kernel", "matmul", "--m", 1 << 20, "--k", 1 << 20, "--n", 1 << 20)
        self.fails(
            2,
            ["core.dma.engine_rat", "did you mean"],
            "kernel",
            "matmul",
            "--set",
            "core.dma.engine_rat=5 GB/s",
        )

    def test_sizes_near_the_largest_integer_are_named(self):
        for size in (2**62, 2**63 - 1, 2**63):
            self.fails(3, ["HBM", "make them smaller"], "kernel", "matmul", "--m", size)
            self.fails(3, ["HBM"], "kernel", "embedding", "--tokens", size, "--width", size)
        self.fails(
            2,
            ["expected at least 1, got -9223372036854775808"],
            "kernel",
            "matmul",
            "--m",
            -(2**63),
        )
        for free in (2**57, 2**63 - 1):
            self.fails(2, ["must cut 25600 elements evenly"], "kernel", "tiled_add", "--free", free)
        self.fails(
            2,
            ["free", "an eighth of a partition of SBUF"],
            "kernel",
            "tiled_add",
            "--elements",
            128_000_000,
            "--free",
            1_000_000,
        )

    def test_sizes_that_do_not_go_together_are_named(self):
        for kernel in ("flash_attention", "flash_attention_backward"):
            self.fails(
                2,
                [f"{kernel}.kv_heads: expected a divisor of the 7 query heads, got 3"],
                "kernel",
                kernel,
                "--heads",
                7,
                "--kv-heads",
                3,
            )
            self.fails(
                2, [f"{kernel}.d: expected at most 128", "got 129"], "kernel", kernel, "--d", 129
            )
        self.fails(
            2,
            ["routing.k: expected at most the 64 experts, got 65"],
            "kernel",
            "routing",
            "--k",
            65,
        )
        self.fails(2, ["none is even"], "kernel", "matmul", "--m", 3, "--cores", 2)

    def test_odd_arguments_are_named(self):
        for value in ("nan", "1.5", "abc"):
            self.fails(2, ["--m", value], "kernel", "matmul", "--m", value)
        self.fails(2, ["--lhs-transposed", "abc"], "kernel", "matmul", "--lhs-transposed=abc")
        self.fails(2, ["--m", "received 2"], "kernel", "matmul", "--m", 2, "--m", 3)
        for cores in (-1, 0, 3):
            self.fails(
                2, [f"cores: expected 1 or 2, got {cores}"], "kernel", "matmul", "--cores", cores
            )
        self.fails(
            2, ["unknown instance", "known: trn1.2xlarge"], "kernel", "matmul", "--instance", ""
        )
        self.fails(
            2,
            ['softmax.dtype: expected one of bf16, fp32, fp16, got "fp8e4m3"'],
            "kernel",
            "softmax",
            "--dtype",
            "fp8e4m3",
        )
        self.fails(2, ["matmull"], "kernel", "matmull", "--json")

    def test_a_trace_that_cannot_be_written_is_named_before_the_result(self):
        for extra in ([], ["--json"]):
            self.fails(
                2,
                ["/dev/null/x.pftrace", "cannot write here"],
                "kernel",
                "softmax",
                "--trace",
                "/dev/null/x.pftrace",
                *extra,
            )
        self.fails(2, ["--trace", "expected a file name"], "kernel", "softmax", "--trace", "")

    def test_hardware_numbers_that_are_none_are_named(self):
        key = "core.dma.engine_rate"
        for value in ("nan", "nan GB/s", "inf GB/s", "-1 GB/s", "5", "5 s"):
            self.fails(
                2, [f"error: --set {key}:1:", value], "kernel", "add", "--set", f"{key}={value}"
            )
        for value in ("0 GB/s", "1e-300 GB/s", "1e300 GB/s"):
            self.fails(
                2,
                [
                    f"--set {key}:1:value: expected at most 1000 times more or less than the "
                    f"hardware file's 23 GB/s, got '{value}'"
                ],
                "kernel",
                "add",
                "--set",
                f"{key}={value}",
            )
        for text in ("", "=5", key, f"{key}=", f"{key}=null"):
            self.fails(2, [f'--set "{text}": expected key=value'], "kernel", "add", "--set", text)

    def test_sizes_of_one_run(self):
        self.assertGreater(
            self.document("kernel", "matmul", "--m", 1, "--k", 1, "--n", 1)["device_time_us"], 0
        )


class Collectives(Case):
    def test_the_columns_of_nccom_test(self):
        rows = self.document(
            "collectives",
            "all_reduce",
            "--instance",
            "trn1.32xlarge",
            "--ranks",
            32,
            "--min",
            "8B",
            "--max",
            "1GiB",
        )["rows"]
        self.assertGreater(len(rows), 20)
        for row in rows:
            self.assertAlmostEqual(
                row["algbw_gb_per_s"],
                row["size_bytes"] / row["time_us"] * 1e-3,
                delta=1e-3 + 1e-3 * row["algbw_gb_per_s"],
            )
            self.assertAlmostEqual(
                row["busbw_gb_per_s"],
                row["algbw_gb_per_s"] * 2 * 31 / 32,
                delta=1e-6 * row["busbw_gb_per_s"] + 1e-9,
            )
            self.assertLessEqual(row["busiest_link_share"], 1)

    def test_the_algorithm_can_be_asked_for(self):
        auto, ring = (
            self.document(
                "collectives",
                "all_gather",
                "--instance",
                "trn2.48xlarge",
                "--min",
                "64KiB",
                "--max",
                "64KiB",
                "--algorithm",
                a,
            )["rows"][0]
            for a in ("auto", "ring")
        )
        self.assertNotEqual(auto["algorithm"], ring["algorithm"])
        self.assertLess(auto["time_us"], ring["time_us"])

    def test_1024_ranks(self):
        for instance in ("trn2.48xlarge", "trn2u.48xlarge"):
            document = self.document(
                "collectives",
                "all_reduce",
                "--instance",
                instance,
                "--nodes",
                16,
                "--min",
                "1GiB",
                "--max",
                "1GiB",
            )
            self.assertEqual(document["ranks"], 1024)

    def test_mistakes_are_named(self):
        self.fails(2, ["all_reduze", "all_reduce"], "collectives", "all_reduze")
        self.fails(2, ["0"], "collectives", "all_reduce", "--ranks", 0)
        self.fails(
            2,
            ["33", "32"],
            "collectives",
            "all_reduce",
            "--instance",
            "trn1.32xlarge",
            "--ranks",
            33,
        )
        self.fails(2, ["--min"], "collectives", "all_reduce", "--min", "0B", "--max", "1KiB")
        self.fails(2, ["1"], "collectives", "all_reduce", "--min", "1B", "--max", "1B")
        self.fails(
            2, ["3"], "collectives", "all_reduce", "--instance", "trn1.32xlarge", "--cores", "0,1,2"
        )
        self.fails(3, ["GiB"], "collectives", "all_reduce", "--min", "1TiB", "--max", "1TiB")

    def test_odd_sizes_are_named(self):
        for size in ("-1", "", "nan", "1e30B", "8 parsecs"):
            self.fails(
                2, [f'--min "{size}": expected a size'], "collectives", "all_reduce", "--min", size
            )
        self.fails(
            2,
            ["--max 1024 B is below --min 1048576 B"],
            "collectives",
            "all_reduce",
            "--min",
            "1MiB",
            "--max",
            "1KiB",
        )
        for op in ("all_reduce", "all_gather", "broadcast"):
            for size in ("9e18B", "4611686018427387904"):
                self.fails(
                    3,
                    ["GiB", "lower --max"],
                    "collectives",
                    op,
                    "--min",
                    size,
                    "--max",
                    size,
                    "--json",
                )
        for factor in (1, 0.5, 0, -2, "nan", "inf", 1.0000001):
            self.fails(2, ["--factor", "expected"], "collectives", "all_reduce", "--factor", factor)

    def test_odd_groups_are_named(self):
        def fails(texts, *args):
            self.fails(2, texts, "collectives", "all_reduce", "--max", "8B", *args)

        for nodes in (0, -1, 1000000, 2**31 - 1):
            fails([f"expected 1 to 16384 nodes, got {nodes}"], "--nodes", nodes)
        fails(["65536 ranks: expected at most 8192"], "--nodes", 1024)
        fails(["core 1 is a member twice"], "--cores", "0,1,1")
        for core in (-1, 64):
            fails([f"core {core} does not exist", "0 to 63"], "--cores", f"0,{core}")
        fails(["--cores"], "--cores", "0,99999999999")
        fails(["--cores", "expected core numbers"], "--cores", "")
        fails(["--cores", "--ranks"], "--cores", "0,1", "--ranks", 2)
        for size in (0, 3, -1):
            fails(["logical core size", f"got {size}"], "--lnc", size)
        fails(['unknown type "fp23"', "; known: uint8"], "--dtype", "fp23")
        fails(["expected a time from 0 to 10 s"], "--set", "collectives.message_time=1e6 s")


class Describe(Case):
    def test_mistakes_are_named(self):
        for nodes in (0, 16385, 1000000, 2**31 - 1):
            self.fails(
                2,
                [f"expected 1 to 16384 nodes, got {nodes}"],
                "describe",
                "trn2.48xlarge",
                "--nodes",
                nodes,
            )
        self.fails(2, ['unknown instance "zzz"; known: trn1'], "describe", "zzz", "--json")
        self.fails(
            2,
            ["a: is no hardware parameter", "b: is no hardware parameter"],
            "describe",
            "trn2.48xlarge",
            "--set",
            "a=1",
            "--set",
            "b=2",
        )
        for file in ("/dev/null/x.dot", "/dev/null/x.svg"):
            self.fails(
                2, [file, "cannot write here"], "describe", "trn2.48xlarge", "--topology", file
            )
        self.fails(2, ["expected a file name"], "describe", "trn2.48xlarge", "--topology", "")
        self.fails(2, ["ends in .svg or .dot"], "describe", "trn2.48xlarge", "--topology", "x.png")
        for option in (("--nodes", 2), ("--lnc", 1), ("--set", "a=1"), ("--topology", "x.dot")):
            self.fails(2, [option[0], "of which instance?"], "describe", *option)

    def test_software_by_release(self):
        stacks = json.loads(self.trellis("describe", "software", "--json").stdout)["software"]
        self.assertEqual([each["name"] for each in stacks], ["megatron", "nxd", "optimum-neuron"])
        old, new = (
            json.loads(self.trellis("describe", "software", name, "--json").stdout)["software"][0]
            for name in ("nxd@2.11", "nxd@2.12")
        )
        in_flight = [
            next(
                each["value"]
                for each in row["parameters"]
                if each["key"] == "software.executions_in_flight"
            )
            for row in (old, new)
        ]
        self.assertEqual(in_flight, ["1", "3"])
        text = self.trellis("describe", "software", "nxd").stdout
        self.assertIn("2.12   asynchronous execution", text)
        self.fails(2, ["release of nxd", "2.20", "2.28"], "describe", "software", "nxd@2.99")
        self.fails(2, ["unknown software", "megatron"], "describe", "software", "nemo")


class Accuracy(Case):
    """The bars that the model is held to; the rows and their sources are in
    benchmarks/published/."""

    def summary(self, subject, group, *args):
        return {s["group"]: s for s in self.document("accuracy", subject, *args)["summaries"]}[
            group
        ]

    def test_matrix_products(self):
        matmul = self.summary("kernels", "matmul")
        self.assertGreaterEqual(matmul["rows"], 20)
        self.assertLessEqual(matmul["median"], 0.04)
        self.assertLessEqual(matmul["worst"], 0.10)

    def test_other_kernels_and_dma(self):
        self.assertLessEqual(self.summary("kernels", "other")["median"], 0.20)
        self.assertLessEqual(self.summary("dma", "all")["median"], 0.20)

    def test_collectives(self):
        sizes = {}
        for row in self.document("accuracy", "collectives")["rows"]:
            large = row["id"].endswith(("MiB", "GiB"))
            sizes.setdefault(large, []).append(abs(row["error"]))
        large, small = sorted(sizes[True]), sorted(sizes[False])
        self.assertGreaterEqual(len(large), 40)
        self.assertLessEqual(large[len(large) // 2], 0.08)
        self.assertLessEqual(large[-1], 0.20)
        self.assertLessEqual(small[len(small) // 2], 0.25)

    def test_fitted_parameters_help_rows_that_they_were_not_fitted_on(self):
        fitted = self.summary("collectives", "all, test rows")["median"]
        self.assertLess(
            fitted, self.summary("collectives", "all, test rows", "--published-only")["median"]
        )

    def test_mistakes_are_named(self):
        self.fails(2, ["kernels", "collectives"], "accuracy", "weather")
        for rows in ("none-*", "", "["):
            self.fails(
                2,
                ["no row", "benchmarks/published/kernels.yaml"],
                "accuracy",
                "kernels",
                "--rows",
                rows,
                "--json",
            )
        self.fails(2, ["--use", "zzz"], "accuracy", "kernels", "--use", "zzz")
        for subject in ("kernels", "dma", "collectives"):
            self.fails(
                2,
                ["--set chip.hbm_bandwidth", "0 TB/s"],
                "accuracy",
                subject,
                "--set",
                "chip.hbm_bandwidth=0 TB/s",
            )


class Selfcheck(Case):
    def test_every_law_holds(self):
        document = self.document("selfcheck")
        self.assertEqual(document["failed"], 0)
        self.assertGreaterEqual(len(document["checks"]), 14)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
