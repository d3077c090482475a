#!/usr/bin/env python3
"""`trellis memory`: the figures of `simulate`, verdicts, exit codes, changes that hold what they
promise, errors."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
LLAMA_8B = SOURCE / "examples/llama3_8b_trn1.yaml"
# 7B parameters of the 8B example's file on one core: the case of aws-neuron-sdk#1014.
ONE_CORE = (
    "trainer.devices=1",
    "distributed_strategy.tensor_model_parallel_size=1",
    "distributed_strategy.sequence_parallel=false",
    "data.global_batch_size=2",
    "model.num_kv_heads=32",
    "model.ffn_hidden_size=11008",
    "model.vocab_size=32000",
)


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def trellis(self, *args, code=0):
        result = subprocess.run(
            [TRELLIS, *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=600
        )
        self.assertEqual(result.returncode, code, result.stdout[-2000:] + result.stderr[-3000:])
        return result

    def plan(self, *args, code=0):
        return json.loads(self.trellis("memory", *args, "--json", code=code).stdout)


class Verdicts(Case):
    def test_the_figures_are_those_of_simulate(self):
        args = (
            QUICKSTART,
            "trainer.devices=4",
            "distributed_strategy.pipeline_model_parallel_size=2",
            "distributed_strategy.tensor_model_parallel_size=2",
        )
        plan, run = self.plan(*args), json.loads(self.trellis("simulate", *args, "--json").stdout)
        self.assertEqual(len(plan["ranks"]), 2)
        for row, other in zip(plan["ranks"], run["memory"]["ranks"], strict=True):
            for key in (
                "rank",
                "represents",
                "peak_bytes",
                "peak_reserved_bytes",
                "peak_phase",
                "at_peak",
                "phases",
                "capacity_bytes",
            ):
                self.assertEqual(row[key], other[key], key)
            self.assertEqual(sum(part["bytes"] for part in row["live_at_peak"]), row["peak_bytes"])
            for phase in row["phases"]:
                self.assertEqual(sum(phase["at_peak"].values()), phase["peak_bytes"])
                self.assertEqual(
                    phase["at_peak"]["parameter_bytes"],
                    row["phases"][0]["at_peak"]["parameter_bytes"],
                    "weights are all there, and nothing else is one",
                )
        self.assertEqual(plan["verdict"], "fits")
        self.assertEqual(plan["headroom_bytes"], plan["capacity_bytes"] - plan["needed_bytes"])
        self.assertEqual(
            plan["needed_bytes"], max(row["peak_reserved_bytes"] for row in plan["ranks"])
        )
        self.assertNotIn("changes", plan)
        self.assertFalse(
            list(self.dir.glob("*experiments*/*/*/trace*"))[1:], "one run folder: that of simulate"
        )

    def test_the_text_says_what_fits_where_and_what_is_not_counted(self):
        text = self.trellis("memory", LLAMA_8B, "model.num_layers=4").stdout
        for part in (
            "Verdict: FITS",
            "headroom",
            "per logical core (2 per chip",
            "optimizer_state",
            "backward",
            "What lives at the peak",
            "DMA rings",
            "estimated",
            "not modelled",
            "Verdict for the host memory of a node: FITS",
        ):
            self.assertIn(part, text)

    def test_the_host_of_a_node_counts_weights_while_they_are_built_and_samples(self):
        few = (QUICKSTART, "trainer.sequential_move_factor=3")
        plan, ahead = self.plan(*few), self.plan(*few, "data.num_workers=2")
        host, run = plan["host"], plan["run"]
        samples = run["num_microbatches"] * run["micro_batch_size"] * run["sequence_length"]
        self.assertEqual(
            host["batches_bytes"],
            run["devices"] * samples * 2 * 8,
            "ids and labels of each rank, int64",
        )
        self.assertEqual(
            ahead["host"]["batches_bytes"],
            2 * host["batches_bytes"],
            "with workers, the next step's too",
        )
        self.assertEqual(
            host["weights_while_building_bytes"],
            3 * max(rank["at_peak"]["parameter_bytes"] for rank in plan["ranks"]),
        )
        self.assertEqual(
            host["counted_bytes"], max(host["batches_bytes"], host["weights_while_building_bytes"])
        )
        self.assertEqual((host["verdict"], host["capacity_bytes"]), ("fits", 512 * 2**30))

    def test_7b_on_one_core_does_not_fit_and_a_checked_change_does(self):
        plan = self.plan(LLAMA_8B, *ONE_CORE, code=3)
        self.assertEqual(plan["verdict"], "does_not_fit")
        self.assertGreater(plan["needed_bytes"], plan["capacity_bytes"])
        self.assertIn("first_refusal", plan["ranks"][0])
        good = [change for change in plan["changes"] if change["status"] in ("fits", "tight")]
        self.assertTrue(
            good, [(change["arguments"], change["status"]) for change in plan["changes"]]
        )
        change = good[0]
        again = self.plan(
            LLAMA_8B,
            *ONE_CORE,
            *change["overrides"][len(ONE_CORE) :],
            "--instance",
            change["instance"],
            "--nodes",
            change["nodes"],
        )
        self.assertEqual(again["needed_bytes"], change["needed_bytes"])
        self.assertEqual(again["verdict"], change["status"])
        # what simulate says of the same
        self.assertIn("out of memory", self.trellis("simulate", LLAMA_8B, *ONE_CORE, code=3).stderr)

    def test_a_small_change_comes_first_where_it_is_enough(self):
        args = (
            LLAMA_8B,
            "model.num_layers=8",
            "data.micro_batch_size=8",
            "distributed_strategy.sequence_parallel=false",
        )
        plan = self.plan(*args, "--all", code=3)
        statuses = {change["arguments"]: change["status"] for change in plan["changes"]}
        self.assertIn("model.activations_checkpoint_granularity=full", statuses)
        good = [
            change["arguments"]
            for change in plan["changes"]
            if change["status"] in ("fits", "tight")
        ]
        self.assertTrue(good)
        self.assertNotIn("nodes", good[0])
        self.assertNotIn("instance", good[0])
        for change in plan["changes"]:
            if change["status"] == "illegal":
                self.assertTrue(change["reason"])
        silent = self.plan(*args, code=3)
        self.assertFalse([change for change in silent["changes"] if change["status"] == "illegal"])

    def test_no_changes_says_only_whether(self):
        result = self.trellis("memory", LLAMA_8B, *ONE_CORE, "--no-changes", code=3)
        self.assertIn("DOES NOT FIT", result.stdout)
        self.assertNotIn("each checked", result.stdout)

    def test_less_tensor_parallelism_never_takes_less_for_weights(self):
        weights = []
        for tp in (8, 4, 2):
            plan = self.plan(
                LLAMA_8B,
                "model.num_layers=2",
                f"distributed_strategy.tensor_model_parallel_size={tp}",
                f"data.global_batch_size={64 // tp}",
                "--no-changes",
            )
            weights.append(plan["ranks"][0]["at_peak"]["parameter_bytes"])
        self.assertEqual(weights, sorted(weights))


class DataParallel(Case):
    """ZeRO-1 pads each parameter by rows for its group, as NeuronX Distributed does: in copies that
    travel, two buckets of them at a time."""

    CAP = 130_000_000

    def peak(self, nodes, *words):
        (row,) = self.plan(
            LLAMA_8B,
            "model.num_layers=4",
            "--no-changes",
            "--nodes",
            nodes,
            f"trainer.num_nodes={nodes}",
            f"data.global_batch_size={32 * nodes}",
            *words,
        )["ranks"]
        return row

    def test_bytes_of_a_rank_from_dp_1_to_4096(self):
        one = self.peak(1)
        hidden, ffn, vocabulary, tp = 4096, 14336, 128256, 8
        layer = (
            hidden * (6144 // tp) + hidden * (hidden // tp) + 3 * hidden * (ffn // tp) + 2 * hidden
        )
        parameters = 4 * layer + 2 * hidden * (vocabulary // tp) + hidden
        small = [
            (dp, ["trainer.devices=" + str(8 * dp), "data.global_batch_size=" + str(8 * dp)])
            for dp in (1, 2)
        ]
        for dp, words in [*small, *((4 * nodes, []) for nodes in (1, 8, 100, 1024))]:
            with self.subTest(dp=dp):
                row = self.peak(max(dp // 4, 1), *words)
                for phase in row["phases"]:
                    self.assertEqual(
                        phase["at_peak"]["gradient_bytes"],
                        one["phases"][0]["at_peak"]["gradient_bytes"],
                        phase["phase"],
                    )
                    self.assertAlmostEqual(
                        phase["at_peak"]["gradient_bytes"] / (4 * parameters), 1, delta=1e-4
                    )
                largest = max(self.CAP, 4 * hidden * (-(-(vocabulary // tp) // dp) * dp))
                # Masters and two moments are divided by DP, everything else is not.
                self.assertLessEqual(
                    row["peak_bytes"] - 12 * parameters / dp,
                    one["peak_bytes"] - 12 * parameters / 4 + 2 * 2 * largest,
                )
                phases = {phase["phase"]: phase for phase in row["phases"]}
                # Padded inputs of two reduce-scatters, or outputs of two all-gathers in half the
                # bytes; a shard of each bucket.
                self.assertLessEqual(
                    phases["grad_reduce"]["at_peak"]["temporary_bytes"],
                    2 * largest + 4 * parameters / dp * 1.5 + 1e6,
                )
                self.assertLessEqual(
                    phases["optimizer"]["at_peak"]["temporary_bytes"],
                    largest + 8 * 4 * parameters / dp + 2e6,
                )

    def test_fully_sharded_bytes_fall_with_dp(self):
        hidden, ffn, vocabulary, tp = 4096, 14336, 128256, 8
        norm, embedding = (hidden, 1), (vocabulary // tp, hidden)
        layer = [
            (6144 // tp, hidden),
            (hidden, hidden // tp),
            (2 * ffn // tp, hidden),
            (hidden, ffn // tp),
            norm,
            norm,
        ]
        before = self.peak(1)["peak_bytes"]
        for nodes in (1, 8, 64):
            with self.subTest(nodes=nodes):
                row, dp = self.peak(nodes, "distributed_strategy.fsdp=true"), 4 * nodes
                elements = sum(
                    -(-rows // dp) * columns
                    for rows, columns in [embedding, embedding, norm, *4 * layer]
                )
                (at_peak,) = [
                    phase["at_peak"] for phase in row["phases"] if phase["phase"] == "forward"
                ]
                # The allocator rounds large buffers up to half a MiB.
                for key, size in (("parameter_bytes", 2), ("gradient_bytes", 4)):
                    self.assertGreaterEqual(at_peak[key], size * elements, key)
                    self.assertLess(at_peak[key], 1.05 * size * elements, key)
                self.assertLess(row["peak_bytes"], before)
                before = row["peak_bytes"]
        # Four copies over 64 nodes: a rank holds what it does on 16.
        copies = "distributed_strategy.data_parallel_replicate_size=4"
        fsdp = "distributed_strategy.fsdp=true"
        (of_copies,), (of_one,) = (
            [phase["at_peak"] for phase in row["phases"] if phase["phase"] == "forward"]
            for row in (self.peak(64, fsdp, copies), self.peak(16, fsdp))
        )
        for key in ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes"):
            self.assertEqual(of_copies[key], of_one[key], key)


class Software(Case):
    """The verdict for published software: software_memory.h."""

    SMALL = (LLAMA_8B, "model.num_layers=4", "software=nxd")

    def test_the_estimate_is_the_sum_of_its_parts_at_the_phase_that_takes_most(self):
        plan = self.plan(*self.SMALL)
        software = plan["software"]
        parts = (
            "inputs_outputs_bytes",
            "scratch_bytes",
            "unaliased_gradient_bytes",
            "cut_bytes",
            "runtime_bytes",
        )
        self.assertEqual(plan["needed_bytes"], sum(software[part] for part in parts))
        self.assertEqual(plan["headroom_bytes"], plan["capacity_bytes"] - plan["needed_bytes"])
        self.assertEqual(
            software["runtime_bytes"],
            sum(row["bytes_per_core"] for row in plan["beyond_allocator"]),
        )
        self.assertEqual((software["unaliased_gradient_bytes"], software["cut_bytes"]), (0, 0))
        ratio = software["scratch_bytes"] / software["scratch_of_this_trainer_bytes"]

        def held(peak):
            return peak["activation_bytes"] + peak["temporary_bytes"]

        def kept(peak):
            names = ("parameter", "gradient", "optimizer_state", "input")
            return sum(peak[name + "_bytes"] for name in names)

        totals = [
            kept(phase["at_peak"]) + ratio * held(phase["at_peak"])
            for rank in plan["ranks"]
            for phase in rank["phases"]
        ]
        self.assertAlmostEqual(
            plan["needed_bytes"] - software["runtime_bytes"], max(totals), delta=2
        )
        self.assertNotIn("software", self.plan(*self.SMALL[:-1]))
        self.assertNotIn(
            "software",
            self.plan(*self.SMALL[:-1], "software=megatron"),
            "no published figure gives its scratch",
        )

    def test_what_a_derivative_reads_after_the_host_has_read_the_loss_is_a_tensor(self):
        """ORPO of TRL: D08, whose telemetry is what the two factors are from; the same loss as one
        graph has no such tensors."""
        d08 = SOURCE / "benchmarks/published/training/D08.yaml"
        options = ("--instance", "trn1.2xlarge", "--no-changes")
        plan = self.plan(d08, *options)
        software, phases = (
            plan["software"],
            {phase["phase"]: phase for phase in plan["ranks"][0]["phases"]},
        )
        saved = (
            phases["backward"]["at_start"]["activation_bytes"]
            + phases["backward"]["at_start"]["temporary_bytes"]
        )
        logits = 2 * 1024 * 128256 // 2 * 2  # two sequences, bf16, half of the vocabulary
        self.assertEqual(software["cut_bytes"], 2 * saved + 4 * logits)
        self.assertAlmostEqual(
            saved / 2**20,
            1279 / 2,
            delta=0.02 * 1279 / 2,
            msg="MiB of a core, as the telemetry shows it of both",
        )
        self.assertAlmostEqual(software["cut_bytes"] / 2**20, 4579 / 2, delta=0.02 * 4579 / 2)
        self.assertIn(
            "of tensors between loss and derivative, which are two graphs there",
            self.trellis("memory", d08, *options).stdout,
        )
        self.assertEqual(
            self.plan(d08, *options, "model_alignment_strategy.orpo.implementation=nxdt")[
                "software"
            ]["cut_bytes"],
            0,
        )

    def test_functionalization_holds_the_gradients_twice(self):
        plain, functional = self.plan(*self.SMALL), self.plan(*self.SMALL, "--functionalization")
        gradients = functional["software"]["unaliased_gradient_bytes"]
        self.assertIn(
            gradients, [phase["at_peak"]["gradient_bytes"] for phase in plain["ranks"][0]["phases"]]
        )
        self.assertGreater(gradients, 0)
        self.assertEqual(functional["needed_bytes"] - plain["needed_bytes"], gradients)
        self.assertIn(
            "functionalization does not alias",
            self.trellis("memory", *self.SMALL, "--functionalization").stdout,
        )
        self.assertIn(
            "--functionalization",
            self.trellis("memory", *self.SMALL[:-1], "--functionalization", code=2).stderr,
        )

    def test_what_fits_this_trainer_need_not_fit_the_software(self):
        args = (
            LLAMA_8B,
            "model.num_layers=16",
            "data.micro_batch_size=4",
            "model.activations_checkpoint_granularity=null",
            "model.fusions.flash_attention=true",
        )
        alone = self.plan(*args)
        nxd = self.plan(*args, "software=nxd", code=3)
        self.assertGreater(nxd["needed_bytes"], nxd["capacity_bytes"])
        self.assertLess(alone["needed_bytes"], alone["capacity_bytes"])
        good = [change for change in nxd["changes"] if change["status"] in ("fits", "tight")]
        self.assertTrue(good)
        again = self.plan(
            *args,
            "software=nxd",
            *good[0]["overrides"][len(args) :],
            "--instance",
            good[0]["instance"],
            "--nodes",
            good[0]["nodes"],
        )
        self.assertEqual(again["needed_bytes"], good[0]["needed_bytes"])
        text = self.trellis("memory", *args, "software=nxd", "--no-changes", code=3).stdout
        for part in (
            "Verdict for nxd on a device, estimated: DOES NOT FIT",
            "of scratch",
            "too much by",
            "this trainer itself takes",
        ):
            self.assertIn(part, text)


class BadInput(Case):
    def test_errors(self):
        for args, part in (
            ((self.dir / "none.yaml",), "none.yaml"),
            ((QUICKSTART, "model.num_layers=0"), "num_layers"),
            ((QUICKSTART, "--instance", "trn9"), "trn9"),
            ((QUICKSTART, "--nodes", "0"), "--nodes"),
            ((QUICKSTART, "trainer.devices=64", "data.global_batch_size=64"), "trainer.devices"),
            ((QUICKSTART, "--steps", "0"), "--steps"),
        ):
            with self.subTest(args):
                self.assertIn(part, self.trellis("memory", *args, code=2).stderr)


if __name__ == "__main__":
    unittest.main()
