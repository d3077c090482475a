#!/usr/bin/env python3
"""`trellis simulate` of mixtures of experts: what an uneven routing costs, and who waits for
whom."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
MIXTRAL = SOURCE / "examples/verify_mixtral.yaml"
EXPERTS, TOP, LAYERS, RANKS, SEQUENCE = 8, 2, 2, 4, 256
TOKENS = RANKS * SEQUENCE  # of a step: one micro-batch of one sequence on each rank
WIDE = [
    "trainer.devices=4",
    "distributed_strategy.tensor_model_parallel_size=1",
    "distributed_strategy.pipeline_model_parallel_size=1",
    "distributed_strategy.sequence_parallel=false",
    "distributed_strategy.expert_model_parallel_size=4",
    f"data.global_batch_size={RANKS}",
    f"model.num_layers={LAYERS}",
    "model.hidden_size=512",
    "model.ffn_hidden_size=1024",
    "model.moe.dropless=true",
    "model.moe.capacity_factor=0.0",
    f"model.encoder_seq_length={SEQUENCE}",
    f"model.max_position_embeddings={SEQUENCE}",
]


class Routing(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def simulate(self, *args, code=0, file=MIXTRAL, cache=("--no-cache",)):
        result = subprocess.run(
            [TRELLIS, "simulate", file, "--json", *cache, *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.temporary.name,
            env={**os.environ, "TRELLIS_CACHE": f"{self.temporary.name}/cache"},
            timeout=300,
        )
        self.assertEqual(result.returncode, code, result.stderr[-3000:])
        return json.loads(result.stdout) if code == 0 else result.stderr

    def ranks(self, report):
        return {row["rank"]: row for row in report["simulated"]["breakdown"]}

    def test_balanced_experts_have_equal_loads_and_ranks(self):
        report = self.simulate(*WIDE)
        self.assertEqual([row["layer"] for row in report["routing"]], list(range(LAYERS)))
        for row in report["routing"]:
            self.assertEqual(row["assigned"], [TOKENS * TOP // EXPERTS] * EXPERTS)
            self.assertEqual(row["routed_tokens"], TOKENS * TOP)
            self.assertEqual((row["dropped_tokens"], row["imbalance"]), (0, 1))
        ranks = self.ranks(report).values()  # a chip's place in its row may distinguish it
        self.assertLess(len(ranks), RANKS)
        self.assertEqual(sum(one["represents"] for one in ranks), RANKS)
        self.assertEqual(len({one["matmul_ps"] for one in ranks}), 1)
        same = self.simulate(*WIDE, "--routing", "balanced")
        self.assertEqual(same["simulated"]["step_time_ps"], report["simulated"]["step_time_ps"])

    def test_the_rank_of_the_hot_expert_computes_longest_and_the_others_wait(self):
        even = self.simulate(*WIDE)
        hot = self.simulate(*WIDE, "--routing", "hot:5=0.5")  # experts 4 and 5 are on rank 2
        row = hot["routing"][0]
        self.assertEqual(row["assigned"][5], TOKENS)
        self.assertEqual(row["routed_tokens"], TOKENS * TOP)
        self.assertEqual(row["imbalance"], EXPERTS / TOP)
        ranks = self.ranks(hot)
        self.assertEqual(sorted(ranks), list(range(RANKS)), "ranks with other loads run separately")
        busy = max(ranks.values(), key=lambda one: one["matmul_ps"])
        self.assertEqual(busy["rank"], 2)
        waits = {rank: one["exposed_ep_ps"] for rank, one in ranks.items()}
        self.assertEqual(min(waits, key=waits.get), 2, "the others wait for it")
        self.assertGreater(hot["simulated"]["step_time_ps"], even["simulated"]["step_time_ps"])
        peaks = {one["rank"]: one["peak_bytes"] for one in hot["memory"]["ranks"]}
        self.assertEqual(max(peaks, key=peaks.get), 2, "the memory of the hottest rank")
        self.assertGreater(peaks[2], even["memory"]["ranks"][0]["peak_bytes"])

    def test_experts_compute_whole_blocks_and_padding_takes_its_time(self):
        block = 192  # of the 256 rows of an even share: two blocks
        exact = self.simulate(*WIDE, "model.moe.block_size=1")
        padded = self.simulate(*WIDE, f"model.moe.block_size={block}")
        share = TOKENS * TOP // EXPERTS
        self.assertEqual(exact["routing"][0]["computed"], [share] * EXPERTS)
        self.assertEqual(exact["routing"][0]["padding"], 0)
        self.assertEqual(padded["routing"][0]["computed"], [2 * block] * EXPERTS)
        self.assertEqual(padded["routing"][0]["padding"], (2 * block - share) * EXPERTS)
        (before,), (after,) = (
            {rank["matmul_ps"] for rank in self.ranks(report).values()}
            for report in (exact, padded)
        )
        self.assertGreater(after, before)

    def test_the_trace_has_a_counter_per_expert(self):
        log = f"{self.temporary.name}/traced"
        self.simulate(
            *(*WIDE, "--routing", "hot:5=0.5", "--trace-format", "text"),
            f"exp_manager.explicit_log_dir={log}",
        )
        counter = (
            r'counter \d+ "rank (\d) \(PP[^)]*\)(?: \(and (\d+) equal ranks?\))?"'
            r'/"expert (\d)" (\d+) tokens'
        )
        counted, total = {}, 0
        for line in (pathlib.Path(log) / "trace.txt").read_text().splitlines():
            if found := re.match(counter, line):
                rank, equal, expert, tokens = (int(text or 0) for text in found.groups())
                counted.setdefault(rank, {})[expert] = tokens
                total += (equal + 1) * tokens
        self.assertEqual(sorted(counted[2]), [4, 5])
        self.assertEqual(counted[2][5], TOKENS)
        self.assertEqual(total, TOKENS * TOP)

    def test_a_steeper_zipf_takes_longer(self):
        times = [
            self.simulate(*WIDE, "--routing", f"zipf:{s}")["simulated"]["step_time_ps"]
            for s in (0, 1, 3)
        ]
        self.assertEqual(times, sorted(times))
        self.assertLess(times[0], times[-1])

    def test_a_capacity_drops_what_an_uneven_routing_sends_it(self):
        capacity = [*WIDE[:-2], "model.moe.dropless=false", "model.moe.capacity_factor=1.0"]
        row = self.simulate(*capacity, *WIDE[-2:], "--routing", "hot:0=0.5")["routing"][0]
        share = SEQUENCE * TOP // EXPERTS  # slots of an expert on each rank
        self.assertEqual(row["assigned"][0], TOKENS)
        self.assertEqual(row["kept"][0], share * RANKS)
        self.assertEqual(row["dropped_tokens"], TOKENS - share * RANKS)
        self.assertEqual(row["routed_tokens"], TOKENS * TOP - row["dropped_tokens"])

    def check_loads(self, simulated, counted):
        self.assertEqual(sum(simulated), TOKENS * TOP)
        for planned, real in zip(simulated, counted, strict=True):
            # One rank's part is a whole number: of equal rests the first is rounded up.
            self.assertLess(abs(planned - real), RANKS)

    def test_a_trace_has_the_loads_of_the_training_that_wrote_it(self):
        steps = ["trainer.max_steps=1", "--device", "cpu"]
        words = [*WIDE, "model.hidden_size=64", "model.ffn_hidden_size=112", "--json"]
        run = subprocess.run(
            [TRELLIS, "train", MIXTRAL, *steps, *words, "exp_manager.explicit_log_dir=run"],
            capture_output=True,
            text=True,
            cwd=self.temporary.name,
            timeout=300,
        )
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        trained = json.loads(run.stdout)["routing"]
        report = self.simulate(*WIDE, "--routing", "trace:run")
        for real, planned in zip(trained, report["routing"], strict=True):
            self.check_loads(planned["assigned"], real["assigned"])
        self.assertNotEqual(
            report["routing"][0]["assigned"], report["routing"][1]["assigned"], "layer by layer"
        )
        self.assertEqual(sorted(self.ranks(report)), list(range(RANKS)))
        # A run that was kept is that of the trace's content, not of its name.
        trace = pathlib.Path(self.temporary.name) / "run/report.json"
        kept = [self.simulate(*WIDE, "--routing", "trace:run", cache=())["routing"]]
        changed = json.loads(trace.read_text())
        changed["routing"][0]["assigned"].reverse()
        trace.write_text(json.dumps(changed))
        kept.append(self.simulate(*WIDE, "--routing", "trace:run", cache=())["routing"])
        self.check_loads(kept[1][0]["assigned"], trained[0]["assigned"][::-1])
        self.assertNotEqual(kept[0][0]["assigned"], kept[1][0]["assigned"])
        self.assertEqual(kept[0][1], kept[1][1])
        error = self.simulate(*WIDE, "model.num_layers=4", "--routing", "trace:run", code=2)
        self.assertIn("expected experts in the 4 layers 0-3 of this model, got 2 layers", error)
        error = self.simulate(*WIDE, "--routing", "trace:none.json", code=2)
        self.assertIn("none.json", error)

    def test_recomputed_passes_of_a_pipeline_are_replayed(self):
        steps = [
            "distributed_strategy.tensor_model_parallel_size=1",
            "distributed_strategy.sequence_parallel=false",
            "distributed_strategy.pipeline_model_parallel_size=4",
            "model.activations_checkpoint_granularity=full",
            "data.global_batch_size=32",
        ]
        reports = []
        for option in ((), ("--no-replay",)):
            words = [*steps, "--json", "--no-cache", *option]
            result = subprocess.run(
                [TRELLIS, "simulate", MIXTRAL, *words, "exp_manager.explicit_log_dir=run"],
                capture_output=True,
                text=True,
                cwd=self.temporary.name,
                timeout=300,
            )
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])
            self.assertNotIn("[warning]", result.stderr, "the periods of its schedule are alike")
            reports.append(result.stdout)
        self.assertEqual(reports[0], reports[1])

    def test_an_end_inside_backward_closes_its_scopes(self):
        words = [
            "distributed_strategy.tensor_model_parallel_size=1",
            "distributed_strategy.sequence_parallel=false",
            "model.activations_checkpoint_granularity=full",
            "model.hidden_size=512",
            "model.ffn_hidden_size=512",
            "model.encoder_seq_length=2048",
            "model.moe.capacity_factor=null",
        ]
        error = self.simulate(*words, "--set", "chip.hbm=600 MiB", code=3)
        self.assertIn("phase backward", error)
        self.assertNotIn("internal error", error)

    def test_the_bound_counts_experts(self):
        def bound(*words):
            report = self.simulate(*WIDE, "--fast", *words, cache=())
            return report["step_time_least_ps"]

        self.assertLess(bound(), bound("model.moe.top_k=4"))
        self.assertLess(bound(), bound("model.moe.num_shared_experts=2"))
        for routing in ("balanced", "zipf:1", "hot:0=0"):
            step = self.simulate(*WIDE, "--routing", routing)["simulated"]["step_time_ps"]
            self.assertLessEqual(bound(), step, routing)

    def test_bad_input_is_named(self):
        for routing, text in (
            ("hot:8=0.2", "expected an expert from 0 to 7, got 8"),
            ("uniform", "expected balanced, zipf:S, hot:EXPERT=SHARE or trace:FILE"),
        ):
            self.assertIn(text, self.simulate(*WIDE, "--routing", routing, code=2))
        llama = SOURCE / "examples/verify_llama.yaml"
        huge = SOURCE / "benchmarks/cli/mixture_1t.yaml"
        error = self.simulate("--routing", "zipf:1", code=2, file=huge)
        for text in (
            "--routing gives each expert-parallel rank experts with other numbers of tokens",
            "expected at most 127 ranks that differ",
            "got 128 (PP 8 × EP 16): take --routing balanced, fewer expert-parallel ranks or fewer",
        ):
            self.assertIn(text, error)
        error = self.simulate("--routing", "zipf:1", code=2, file=llama)
        self.assertIn("has no mixture of experts: expected section model.moe", error)


if __name__ == "__main__":
    unittest.main()
