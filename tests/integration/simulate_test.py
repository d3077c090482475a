#!/usr/bin/env python3
"""`trellis simulate` at scale: passes that repeat are not executed, parts are slow, weights fully
sharded; answers; the size of the cluster costs nothing."""

import json
import os
import re
import subprocess
import unittest

from simulate_case import QUICKSTART, SOURCE, TRELLIS, Case, figures


class Replay(Case):
    """Every file of a run and its report, except for what the host took."""

    STEP = ("data.global_batch_size=24",)  # micro-batches at DP 1
    LAYOUTS = {
        "pp1, gradients accumulated": (1, 1, 1, 1, *STEP),
        "tp2, one stage, with sequence parallelism": (
            2,
            2,
            1,
            1,
            *STEP,
            "distributed_strategy.sequence_parallel=true",
        ),
        "pp2": (2, 1, 2, 1, *STEP),
        "pp4": (4, 1, 4, 1, *STEP),
        "tp2-pp4-dp2, zero1": (
            16,
            2,
            4,
            2,
            "data.global_batch_size=48",
            "distributed_strategy.zero1=true",
            "distributed_strategy.sequence_parallel=true",
        ),
        "dp4, zero1": (4, 1, 1, 4, "data.global_batch_size=96", "distributed_strategy.zero1=true"),
        "dp4, fully sharded": (
            4,
            1,
            1,
            4,
            "data.global_batch_size=96",
            "distributed_strategy.fsdp=true",
        ),
        "dp2-pp2, without zero1": (
            4,
            1,
            2,
            2,
            "data.global_batch_size=48",
            "distributed_strategy.zero1=false",
        ),
        "interleaved": (
            2,
            1,
            2,
            1,
            *STEP,
            "distributed_strategy.virtual_pipeline_model_parallel_size=2",
        ),
        "interleaved, pp4": (
            4,
            1,
            4,
            1,
            "data.global_batch_size=48",
            "distributed_strategy.virtual_pipeline_model_parallel_size=2",
            "model.num_layers=8",
        ),
        "recompute, all": (2, 1, 2, 1, *STEP, "model.activations_checkpoint_granularity=full"),
        "recompute, attention": (
            2,
            2,
            1,
            1,
            *STEP,
            "model.activations_checkpoint_granularity=selective",
        ),
        "tied weights": (2, 1, 2, 1, *STEP, "model.share_embeddings_and_output_weights=true"),
        "dropout": (2, 1, 2, 1, *STEP, "model.hidden_dropout=0.1"),
    }

    def layout(self, ranks, tp, *args, **more):
        return super().layout(
            ranks,
            tp,
            *args,
            *(() if tp > 1 else ("distributed_strategy.sequence_parallel=false",)),
            **more,
        )

    def run_in(self, name, *args):
        directory = self.dir / name
        report = self.simulate(
            *args, "--trace-format", "text", f"exp_manager.explicit_log_dir={directory}"
        )
        return (
            report,
            (directory / "trace.txt").read_bytes(),
            (directory / "portability.json").read_bytes(),
        )

    def test_changes_nothing(self):
        for number, (name, (ranks, tp, pp, dp, *more)) in enumerate(self.LAYOUTS.items()):
            with self.subTest(name):
                arguments = self.layout(ranks, tp, pp, dp, *more)
                replayed, executed = (
                    self.run_in(f"{number}-{way}", *arguments, *option)
                    for way, option in (("replayed", ()), ("executed", ("--no-replay",)))
                )
                self.assertEqual(replayed[0], executed[0])
                self.assertEqual(replayed[1], executed[1], "trace.txt")
                self.assertEqual(replayed[2], executed[2], "portability.json")

    def test_changes_nothing_in_later_steps(self):
        arguments = self.layout(
            4, 1, 2, 2, "data.global_batch_size=48", "distributed_strategy.zero1=true", "--steps", 3
        )
        replayed, executed = (
            self.run_in("replayed", *arguments),
            self.run_in("executed", *arguments, "--no-replay"),
        )
        self.assertEqual(replayed, executed)

    def test_changes_nothing_when_every_rank_runs(self):
        arguments = self.layout(
            8, 2, 2, 2, "data.global_batch_size=48", "distributed_strategy.zero1=true", "--no-fold"
        )
        self.assertEqual(
            self.run_in("replayed", *arguments), self.run_in("executed", *arguments, "--no-replay")
        )


class Slow(Case):
    SPLITS = {
        "a core": ("--slow", "core:5=1.5"),
        "two cores": ("--slow", "core:0=2", "--slow", "core:7=1.25"),
        "a link": ("--slow", "link:node0.chip0.neuron_link_east=16"),
        "a core and a link": (
            "--slow",
            "core:2=1.1",
            "--slow",
            "link:node0.chip1.neuron_link_west=8",
        ),
    }

    def test_folded_is_as_long_as_unfolded(self):
        for layout in (
            (8, 2, 2, 2, "distributed_strategy.zero1=true"),
            (8, 1, 4, 2, "distributed_strategy.sequence_parallel=false"),
            (8, 8, 1, 1),
        ):
            arguments = self.layout(*layout)
            alone = self.simulate(*arguments)["simulated"]["step_time_ps"]
            for name, slow in self.SPLITS.items():
                with self.subTest(f"{layout}: {name}"):
                    folded, unfolded = (
                        self.simulate(*arguments, *slow),
                        self.simulate(*arguments, *slow, "--no-fold"),
                    )
                    self.assertEqual(
                        folded["simulated"]["step_time_ps"], unfolded["simulated"]["step_time_ps"]
                    )
                    self.assertGreaterEqual(folded["simulated"]["step_time_ps"], alone)
                    by_rank = {
                        row["rank"]: figures(row) for row in unfolded["simulated"]["breakdown"]
                    }
                    for row in folded["simulated"]["breakdown"]:
                        self.assertEqual(figures(row), by_rank[row["rank"]])
                    if "core" in name:
                        self.assertGreater(folded["simulated"]["step_time_ps"], alone)

    def test_parts_of_a_slow_step_add_up(self):
        report = self.simulate(*self.layout(8, 2, 2, 2), "--slow", "core:5=1.5")
        step = report["simulated"]["step_time_ps"]
        for row in report["simulated"]["breakdown"]:
            self.assertEqual(row["total_ps"], step)
        self.assertEqual(
            sum(row["time_ps"] for row in report["simulated"]["attribution"]["rows"]), step
        )
        self.assertEqual(sum(row["represents"] for row in report["simulated"]["breakdown"]), 8)

    def test_factor_one_is_nothing(self):
        arguments = self.layout(8, 2, 2, 2)
        reports = [
            self.simulate(*arguments, *slow)
            for slow in (
                (),
                ("--slow", "core:3=1", "--slow", "link:node0.chip0.neuron_link_east=1"),
            )
        ]
        self.assertEqual(*reports)

    def test_refusals(self):
        for text, message in (
            ("core:8=2", "expected a rank of 0 to 7"),
            ("core:1=0.5", "expected a factor of 1"),
            ("disk:1=2", "expected core or link"),
            ("link:node0.chip0.north=2", "there is none on 1 x trn1.32xlarge"),
            ("core", "core:3=1.5"),
        ):
            self.assertIn(message, self.simulate(*self.layout(8, 2, 2, 2), "--slow", text, code=2))


class FullySharded(Case):
    def test_each_micro_batch_gathers_its_units_and_reduces_their_gradients(self):
        layers, micro_batches = 4, 3
        for recompute in ("null", "full"):
            report = self.simulate(
                *self.layout(8, 2, 1, 4, "distributed_strategy.fsdp=true"),
                f"data.global_batch_size={4 * micro_batches}",
                f"model.activations_checkpoint_granularity={recompute}",
                "--no-cache",
            )
            (row,) = [
                row for row in report["simulated"]["communication"]["rows"] if row["axis"] == "dp"
            ]
            # Backward gathers all but the embedding, the last layer and the head. Norms and other
            # weights of a unit are reduced separately; two sums are over the loss and the norm.
            gathers, reductions = 2 + layers + layers - 1, 1 + 2 * layers + 2
            self.assertEqual(row["count"], micro_batches * (gathers + reductions) + 2)

    def test_copies_are_summed_once_per_step(self):
        layers, micro_batches = 4, 3
        report = self.simulate(
            *self.layout(8, 2, 1, 4, "distributed_strategy.fsdp=true"),
            "distributed_strategy.data_parallel_replicate_size=2",
            f"data.global_batch_size={4 * micro_batches}",
            "--no-cache",
        )
        rows = report["simulated"]["communication"]["rows"]
        (shards,) = [row for row in rows if row["axis"] == "fsdp"]
        (copies,) = [row for row in rows if row["axis"] == "replicas"]
        gathers, reductions = 2 + layers + layers - 1, 1 + 2 * layers + 2
        self.assertEqual(shards["count"], micro_batches * (gathers + reductions) + 1)  # the norm's
        self.assertEqual(copies["count"], reductions)

    def test_what_is_refused(self):
        adapters = [
            f"data.train_dir={SOURCE / 'examples/alignment/answers.jsonl'}",
            "model_alignment_strategy={sft: {}, peft: {lora_rank: 4}}",
        ]
        one_stage = "distributed_strategy.pipeline_model_parallel_size=1"
        sharded = "distributed_strategy.fsdp=true"
        for words, text in (
            ([], "with pipeline stages (pipeline_model_parallel_size 2)"),
            ([one_stage, *adapters], "with LoRA adapters (model_alignment_strategy.peft)"),
            ([one_stage, "--check-replicas", "1"], "have no copies to compare"),
        ):
            result = subprocess.run(
                [TRELLIS, "train", QUICKSTART, "--device", "cpu", sharded, *words],
                capture_output=True,
                text=True,
                cwd=self.dir,
                timeout=60,
            )
            self.assertEqual(result.returncode, 2, result.stderr[-2000:])
            self.assertIn(text, result.stderr)


class Answers(Case):
    """Prefill and decoding of the 8B example at full size, without weights."""

    LLAMA = SOURCE / "examples/llama3_8b_trn1.yaml"
    # A trn1 chip has 820 GB/s and 190 TFLOPS for two cores.
    BANDWIDTH, FLOPS = 410e9, 95e12
    LAYERS, KV_HEADS, HEAD, PARAMETERS = 32, 8, 128, 8_030_261_248
    TABLE = 128256 * 4096  # of the embedding, which a token reads one row of

    def times(self, *args, code=0):
        result = subprocess.run(
            [TRELLIS, "simulate", self.LLAMA, "--generate", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(result.returncode, code, result.stderr[-3000:])
        return result.stdout if code == 0 else result.stderr

    def answers(self, prompt, batch=1, tp=8):
        layout = f"distributed_strategy.tensor_model_parallel_size={tp}"
        return json.loads(self.times("--json", "--prompt-tokens", prompt, "--batch", batch, layout))

    def bound_ms(self, answer):
        table = 2 * self.TABLE / answer["tensor_parallel"]
        read = answer["weight_bytes_per_core"] - table + answer["kv_cache_bytes_per_core"]
        return read / self.BANDWIDTH * 1e3

    def test_a_token_takes_at_least_what_weights_and_cache_take_to_be_read(self):
        by_tp = {tp: self.answers(896, tp=tp) for tp in (2, 4, 8)}
        for tp, answer in by_tp.items():
            self.assertAlmostEqual(
                answer["weight_bytes_per_core"] * tp / (2 * self.PARAMETERS), 1, delta=1e-3
            )
            cached = 2 * 2 * self.LAYERS * self.KV_HEADS * self.HEAD * 1024 // tp
            self.assertEqual(answer["cached_tokens"], 1024)
            self.assertEqual(answer["kv_cache_bytes_per_core"], cached)
            self.assertGreater(answer["time_per_output_token_ms"], self.bound_ms(answer))
            self.assertLess(answer["time_per_output_token_ms"], 4 * self.bound_ms(answer))
            rate = answer["data_parallel"] * 1e3 / answer["time_per_output_token_ms"]
            self.assertAlmostEqual(answer["output_tokens_per_s"], rate)
            self.assertEqual(answer["estimated"], [])
            self.assertIn("no published times", answer["exploratory"])
        # Half of the weights: what is saved is at least half of what they take to be read.
        for tp in (2, 4):
            saved = (
                by_tp[tp]["time_per_output_token_ms"] - by_tp[2 * tp]["time_per_output_token_ms"]
            )
            self.assertGreater(saved, self.bound_ms(by_tp[tp]) / 2 * 0.9)

    def test_a_longer_cache_and_prompt_cost_at_least_their_bytes_and_products(self):
        short, middle, long = (self.answers(prompt, batch=4) for prompt in (384, 896, 1920))
        for less, more in ((short, middle), (middle, long)):
            longer = more["time_per_output_token_ms"] - less["time_per_output_token_ms"]
            self.assertGreater(longer, self.bound_ms(more) - self.bound_ms(less))
            self.assertLess(longer, 20 * (self.bound_ms(more) - self.bound_ms(less)))
        first, second, third = (a["time_to_first_token_ms"] for a in (short, middle, long))
        self.assertGreater(third - second, 0.95 * 2 * (second - first))
        for answer in (short, middle, long):
            products = 2 * (self.PARAMETERS - 2 * self.TABLE) / 8 * 4 * answer["prompt_tokens"]
            self.assertGreater(answer["time_to_first_token_ms"], products / self.FLOPS * 1e3)

    def test_text_and_refusals(self):
        self.assertIn("exploratory: no published times", self.times())
        wrong = self.times("--prompt-tokens", 4000, code=2)
        self.assertIn("4096 tokens of model.encoder_seq_length, got 4128", wrong)
        self.assertIn("does not know --steps", self.times("--steps", 2, code=2))
        ring = ["model.fusions={ring_attention: true}"]
        ring += ["distributed_strategy.context_parallel_size=2"]
        self.assertIn("context_parallel_size", self.times(*ring, code=2))


class Data(Case):
    def test_a_step_waits_for_its_inputs_and_the_trace_shows_host_and_links(self):
        directory = self.dir / "data"
        report = self.simulate(
            *self.layout(8, 2, 2, 2),
            "--trace-format",
            "text",
            f"exp_manager.explicit_log_dir={directory}",
        )["simulated"]
        for row in report["breakdown"]:
            self.assertGreater(row["data_ps"], 0)
        rank = next(
            row for row in report["breakdown"] if row["rank"] == report["attribution"]["rank"]
        )
        self.assertEqual(
            sum(row["time_ps"] for row in report["attribution"]["rows"] if row["kind"] == "data"),
            rank["data_ps"],
        )
        trace = (directory / "trace.txt").read_text().splitlines()
        copies = [
            line
            for line in trace
            if line.startswith("slice ")
            and f'"rank {rank["rank"]}' in line
            and '/"host" "data to device"' in line
        ]
        self.assertEqual(
            sum(int(line.split("+")[1].split()[0]) for line in copies), rank["data_ps"]
        )
        self.assertTrue(any('/"host" "launch"' in line for line in trace))
        counted = {}
        for line in trace:
            found = re.match(r'counter (\d+) "links[^"]*"/"([^"]+)" (\d+) bytes/s$', line)
            if found:
                counted.setdefault(found[2], []).append((int(found[1]), int(found[3])))
        self.assertEqual(
            set(counted),
            {
                link["name"]
                for link in sorted(report["links"], key=lambda link: -link["busy_us"])[:64]
            },
        )
        for link in (link for link in report["links"] if link["name"] in counted):
            samples = sorted(counted[link["name"]])
            moved = sum(
                rate * (later - at) * 1e-12 for (at, rate), (later, _) in zip(samples, samples[1:])
            )
            self.assertAlmostEqual(
                moved / link["size_bytes"], 1, delta=0.01
            )  # rates are whole bytes a second
            self.assertEqual(samples[-1][1], 0)


class Scale(Case):
    def test_more_replicas_than_ranks_fit_a_process(self):
        report = self.simulate(*self.layout(32, 8, 2, 256, nodes=128))
        self.assertEqual(report["world_size"], 4096)
        self.assertEqual(sum(row["represents"] for row in report["simulated"]["breakdown"]), 4096)
        self.assertEqual([row["represents"] for row in report["memory"]["ranks"]], [2048, 2048])

    def test_constant_work_per_rank_grows_by_communication_alone(self):
        """Llama-3 8B on 1 and 1,024 instances: what they wait for, and what a run on several ones
        takes longer as measured, is all."""

        def run(nodes):
            start = os.times()
            result = subprocess.run(
                [
                    TRELLIS,
                    "simulate",
                    SOURCE / "examples/llama3_8b_trn1.yaml",
                    "--json",
                    "--no-cache",
                    "--nodes",
                    str(nodes),
                    f"trainer.num_nodes={nodes}",
                    f"data.global_batch_size={32 * nodes}",
                ],
                capture_output=True,
                text=True,
                cwd=self.dir,
                timeout=300,
                check=True,
            )
            end = os.times()
            return json.loads(result.stdout), end.children_user - start.children_user

        run(1)
        (one, one_s), (many, many_s) = run(1), run(1024)
        for before, after in zip(
            one["simulated"]["breakdown"], many["simulated"]["breakdown"], strict=True
        ):
            grown = {
                key: after[key] - before[key]
                for key in before
                if key.endswith("_ps") and key not in ("total_ps", "memory_bound_ps")
            }
            of_communication = {
                key
                for key in grown
                if key.startswith("exposed_") or key in ("bubble_ps", "multi_node_ps")
            }
            for key in set(grown) - of_communication:
                # Copies with padding, of communications too, are a hundredth of the step.
                self.assertLessEqual(grown[key], 0.01 * before["total_ps"], key)
            self.assertLess(sum(grown[key] for key in set(grown) - of_communication), 0)
            self.assertGreater(sum(grown[key] for key in of_communication), 0)
            self.assertAlmostEqual(
                after["multi_node_ps"]
                / (after["matmul_ps"] + after["other_compute_ps"] + after["other_ps"]),
                0.09,
                delta=0.001,
            )
        self.assertLess(many_s, 2.5 * one_s, "1.45 times on a free machine")

    def test_every_rank_of_a_large_world_is_refused_with_what_to_do(self):
        self.assertIn(
            "127 ranks", self.simulate(*self.layout(32, 8, 2, 16, nodes=8), "--no-fold", code=2)
        )


if __name__ == "__main__":
    unittest.main()
