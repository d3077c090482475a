#!/usr/bin/env python3
"""`trellis verify`: every layout equals one rank, every seeded mistake is noticed, bad input has a
text."""

import json
import os
import pathlib
import subprocess
import unittest

from cli_case import Case

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
LLAMA = SOURCE / "examples/verify_llama.yaml"
MIXTRAL = SOURCE / "examples/verify_mixtral.yaml"
MODEL = ["model.hidden_size=32", "model.ffn_hidden_size=48", "model.encoder_seq_length=16"]
SMALL = [*MODEL, "data.global_batch_size=4"]
# Two micro-batches on each of four data-parallel ranks, one on each of eight.
EIGHT_SAMPLES = [*MODEL, "data.global_batch_size=8"]

# A layout in which each mistake can show, and the first thing that must be named.
BUGS = {
    "loss-over-own-vocabulary": ("TP2.DP2", "step 1: loss"),
    "activations-not-summed": ("TP2.DP2", "step 1: loss"),
    "vocabulary-rows-shifted": ("TP2.DP2", "step 1: loss"),
    "norm-gradients-not-summed": ("TP2.SP", "norm"),
    "gradient-norm-counts-replicas": ("TP2.DP2", "step 1: gradient norm"),
    "kv-replicas-not-summed": ("TP4.KV2", "gradient of"),
    "tied-embedding-missed": ("PP2.DP2", "step 1: "),
    "samples-overlap": ("DP4", "step 1: loss"),
    "gradients-not-averaged": ("DP4", "gradient of"),
    "weights-not-gathered": ("DP4.ZeRO1", ""),
    "shard-updated-twice": ("DP4.FSDP", "step 2: loss"),
    "copies-not-summed": ("DP4.copies2", "gradient of"),
    "activations-arrive-late": ("PP2.DP2", "step 1: loss"),
    "dropout-seed-shared": ("TP2.DP2,DP4", "step 1: loss"),
    "context-counts-own-labels": ("CP2.TP2,CP4", "gradient of"),
    "blocks-arrive-late": ("CP2.DP2,CP4", "step 1: "),
    "expert-gradients-scaled": ("DP2.EP2.TP2,DP4.EP4", "mlp_op"),
    "auxiliary-loss-per-rank": ("TP2.DP2", "step 1: "),
    "permutation-not-inverted": ("DP4.EP2", "step 1: loss"),
    "capacity-after-exchange": ("DP4.EP4", "step 1: loss"),
}
RING = ["model.fusions.flash_attention=false", "model.fusions.ring_attention=true"]
OF_EXPERTS = {
    "expert-gradients-scaled",
    "auxiliary-loss-per-rank",
    "permutation-not-inverted",
    "capacity-after-exchange",
}
# A few norm weights that count twice change the norm of all gradients by less than half precision
# does: only fp64 shows it.
BELOW_THE_NOISE = {"gradient-norm-counts-replicas"}
MEGATRON = [SOURCE / "examples/quickstart.yaml", "data.micro_batch_size=1"]
TIED = [*MEGATRON, "model.share_embeddings_and_output_weights=true"]
DROPOUT = [*MEGATRON, "model.hidden_dropout=0.1", "model.attention_dropout=0.1"]
BIASES = [
    *MEGATRON,
    "model.has_bias=true",
    "model.normalization=layernorm",
    "model.activation=gelu",
]


def verify(*args, environment=None, cwd=None):
    return subprocess.run(
        [TRELLIS, "verify", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
    )


def launched(process, processes):
    """What torchrun says to a process."""
    return {
        "RANK": str(process),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29511",
    }


class Shards(Case):
    """Parts of a verification, each with a journal, and what they are together."""

    COMMAND = [LLAMA, *SMALL, "--ranks", 2, "--layouts", "TP2.SP,DP2.ZeRO1", "--steps", 1]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = verify(*cls.COMMAND, "--json").stdout

    def ok(self, *args, **environment):
        result = verify(*args, environment=environment, cwd=self.dir)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return result

    def refused(self, *args, text, **environment):
        result = verify(*args, environment=environment, cwd=self.dir)
        self.assertEqual(result.returncode, 2, result.stderr[-3000:])
        self.assertIn(text, result.stderr)

    def run_parts(self, count):
        for part in range(1, count + 1):
            self.ok(*self.COMMAND, "--shard", f"{part}/{count}", "--out", f"parts/{part}")

    def merged(self, folder="parts"):
        return self.ok("merge", *sorted((self.dir / folder).iterdir()), "--json").stdout

    def test_merged_they_are_the_whole(self):
        self.run_parts(3)
        self.assertEqual(self.merged(), self.whole)

    def test_a_part_that_was_cut_off_goes_on(self):
        self.run_parts(2)
        journal = self.dir / "parts/2/journal.jsonl"
        lines = journal.read_text().splitlines(keepends=True)
        kept = "".join(lines[:3]) + lines[3][:20]
        journal.write_text(kept)
        self.refused("merge", "parts/1", "parts/2", text="have no result yet")
        again = self.ok(*self.COMMAND, "--shard", "2/2", "--out", "parts/2")
        self.assertIn("the last line is torn", again.stderr)
        self.assertTrue(journal.read_text().startswith("".join(lines[:3])))
        self.assertEqual(self.merged(), self.whole)
        finished = self.ok(*self.COMMAND, "--shard", "2/2", "--out", "parts/2")
        self.assertNotIn("[1/", finished.stderr, "nothing is left to run")

    def test_processes_of_a_launcher_take_the_part_of_their_number(self):
        for process in range(2):
            self.ok(*self.COMMAND, "--out", "parts", **launched(process, 2))
        self.assertEqual(
            sorted(path.name for path in (self.dir / "parts").iterdir()), ["1-of-2", "2-of-2"]
        )
        self.assertEqual(self.merged(), self.whole)
        self.refused(*self.COMMAND, **launched(0, 2), text="give --out DIR")
        self.refused(
            *(*self.COMMAND, "--out", "x", "--shard", "1/2"),
            **launched(0, 2),
            text="leave it out",
        )

    def test_a_mistake_in_one_part_is_one_of_the_whole(self):
        command = [*self.COMMAND, "--seed-bug", "samples-overlap"]
        whole = verify(*command, "--json")
        self.assertEqual(whole.returncode, 5, whole.stderr[-3000:])
        for part in (1, 2):
            verify(*command, "--shard", f"{part}/2", "--out", f"wrong/{part}", cwd=self.dir)
        merged = verify("merge", "wrong/1", "wrong/2", "--json", cwd=self.dir)
        self.assertEqual(merged.returncode, 5, merged.stderr[-3000:])
        self.assertEqual(merged.stdout, whole.stdout)

    def test_bad_input(self):
        self.refused(*self.COMMAND, "--shard", "1/2", text="give --out DIR too")
        self.refused(*self.COMMAND, "--shard", "3/2", "--out", "x", text="expected i/n")
        self.ok(*self.COMMAND, "--shard", "1/2", "--out", "one")
        self.refused("merge", "one", text="shard 2/2 is missing")
        self.refused("merge", self.dir, text="no journal.jsonl there")
        self.refused(
            *(*self.COMMAND, "--tolerance", 1e-9, "--shard", "1/2", "--out", "one"),
            text="the folder holds another verification: --tolerance: 1e-10 there, 1e-09 here",
        )
        head, rest = (self.dir / "one/journal.jsonl").read_text().split("\n", 1)
        (self.dir / "one/journal.jsonl").write_text(head + '\n{"layout": 3}\n' + rest)
        self.refused(
            *(*self.COMMAND, "--shard", "1/2", "--out", "one"),
            text="journal.jsonl:2: the journal is damaged",
        )
        self.refused(text="which configuration?")


class Layouts(unittest.TestCase):
    def test_every_layout_of_four_ranks_equals_one_rank(self):
        result = verify(LLAMA, *SMALL, "--ranks", 4, "--json")
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        document = json.loads(result.stdout)
        run = [one for one in document["layouts"] if "illegal" not in one]
        self.assertTrue(all(one["equal"] for one in run))
        in_fp64 = [one for one in run if one["precision"] == "fp64"]
        self.assertLessEqual(max(one["worst"]["error"] for one in in_fp64), 1e-10)
        chosen = {one["layout"] for one in in_fp64}
        for layout in (
            "TP2 PP2 SP ZeRO1",
            "PP2 VPP2 DP2",
            "DP4 ZeRO1 full",
            "TP4 SP ZeRO1 KV2 selective",
            "TP2 DP2 SP FSDP full",
        ):
            self.assertIn(layout, chosen)
        self.assertGreater(min(one["compared"] for one in in_fp64), 50)

    def test_progress_names_each_layout(self):
        result = verify(
            LLAMA, *SMALL, "--ranks", 2, "--layouts", "TP2.SP.KV1,DP2.full", "--steps", 1
        )
        self.assertEqual(result.returncode, 2)  # a factor of one is no part of a layout
        result = verify(LLAMA, *SMALL, "--ranks", 2, "--layouts", "DP2.full", "--steps", 1)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertIn("fp64  DP2 full", result.stderr)

    def test_layouts_side_by_side_give_the_same_document(self):
        args = [LLAMA, *SMALL, "--ranks", 2, "--layouts", "TP2,PP2", "--json"]
        one, three = (verify(*args, "--threads", threads) for threads in (1, 3))
        self.assertEqual(one.returncode, 0, one.stderr[-3000:])
        self.assertGreater(len(json.loads(one.stdout)["layouts"]), 10)
        self.assertEqual(one.stdout, three.stdout)

    def test_dropout_drops_the_same_in_every_layout(self):
        result = verify(
            *DROPOUT,
            *SMALL,
            "--ranks",
            4,
            "--layouts",
            "TP2.PP2,TP2.DP2,PP2.VPP2,DP4,TP4",
            "--json",
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertGreater(
            sum("illegal" not in one for one in json.loads(result.stdout)["layouts"]), 20
        )

    def test_a_tolerance_always_means_something(self):
        """Of a bias whose gradient is small, too: no tolerance allows half of a tensor."""
        result = verify(*BIASES, *SMALL, "--ranks", 2, "--json")
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        document = json.loads(result.stdout)
        derived = document["derived_tolerances"]
        self.assertGreaterEqual(derived["smallest"], 2**-8)
        self.assertLessEqual(derived["largest"], 0.5)
        run = [one for one in document["layouts"] if "illegal" not in one]
        self.assertEqual({one["precision"] for one in run}, {"fp64", "mixed_precision"})
        for one in run:
            self.assertLess(
                one["compared_by_share"],
                one["compared"] * (0.1 if one["precision"] == "fp64" else 0.5),
            )
            self.assertLessEqual(
                one["worst"]["tolerance"], 1e-10 if one["precision"] == "fp64" else 0.5
            )
        text = verify(*BIASES, *SMALL, "--ranks", 2, "--layouts", "DP2").stdout
        self.assertRegex(
            text,
            r"mixed_precision: tolerances \d\.\de-\d\d to \d\.\de-\d\d: \d\.\d\d × the noise of "
            r"rounding, number by number",
        )


class Contexts(unittest.TestCase):
    def of_contexts(self, *args):
        result = verify(*args, "--json", "--steps", 2)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        run = [one for one in json.loads(result.stdout)["layouts"] if "illegal" not in one]
        in_fp64 = [one for one in run if one["precision"] == "fp64"]
        self.assertLessEqual(max(one["worst"]["error"] for one in in_fp64), 1e-10)
        return {one["layout"] for one in in_fp64}

    def test_every_layout_of_four_ranks_equals_one_rank(self):
        """In half precision: the windows below."""
        chosen = self.of_contexts(
            *(LLAMA, *SMALL, *RING, "--ranks", 4, "--layouts", "CP2,CP4"),
            *("precision=null", "precision.type=fp64"),
        )
        for layout in (
            "PP2 CP2 ZeRO1",
            "TP2 CP2 balanced SP ZeRO1 KV2 full",
            "DP2 CP2 selective",
            "CP4 balanced ZeRO1",
        ):
            self.assertIn(layout, chosen)

    def test_all_axes_together(self):
        chosen = self.of_contexts(
            *(LLAMA, *SMALL, *RING, "--ranks", 8, "precision=null", "precision.type=fp64"),
            *("--layouts", "TP2.PP2.CP2.SP.ZeRO1,TP2.DP2.CP2.SP.ZeRO1,PP2.DP2.CP2.ZeRO1"),
        )
        self.assertIn("TP2 PP2 CP2 balanced SP ZeRO1", chosen)

    def test_windows_and_learned_positions(self):
        window = ["model.sliding_window_size=5", "--layouts", "CP4,TP2.CP2.SP.ZeRO1"]
        self.of_contexts(LLAMA, *SMALL, *RING, "--ranks", 4, *window)
        learned = ["model.position_embedding_type=learned_absolute", "--layouts", "CP2.ZeRO1"]
        self.of_contexts(*MEGATRON, *SMALL, *RING, "--ranks", 2, *learned)

    def test_mixtures_and_their_auxiliary_loss(self):
        """EP takes ranks of CP, too."""
        few = ["model.num_layers=2", "model.moe.dropless=true", "model.moe.capacity_factor=0.0"]
        chosen = self.of_contexts(
            *(MIXTRAL, *SMALL, *RING, *few, "--ranks", 4, "precision=null", "precision.type=fp64"),
            *("--layouts", "CP4.EP4.ZeRO1,PP2.CP2.EP2.full,TP2.CP2.SP.ZeRO1.KV2.full"),
        )
        self.assertIn("CP4 balanced EP4 ZeRO1", chosen)

    def test_masks_of_dropout_are_those_of_one_rank(self):
        dropped = ["model.hidden_dropout=0.1", "model.ffn_dropout=0.1", "precision=null"]
        self.of_contexts(
            *(*MEGATRON, *SMALL, *RING, *dropped, "precision.type=fp64", "--ranks", 4),
            *("--layouts", "CP4.ZeRO1.full,TP2.CP2.SP.ZeRO1.full"),
        )

    def test_preference_pairs_and_adapters_that_drop(self):
        pairs = [f"data.train_dir={SOURCE / 'examples/alignment/preferences.jsonl'}"]
        adapters = "peft: {lora_rank: 2, lora_dropout: 0.1, target_modules: [qkv_proj, o_proj]}"
        for strategy, layout in (
            ("{orpo: {beta: 0.5}}", "CP4.ZeRO1.full"),
            ("{orpo: {beta: 0.5, implementation: trl}}", "TP2.CP2.balanced.SP.KV2.full"),
            ("{dpo: {kl_beta: 0.5}, " + adapters + "}", "TP2.CP2.SP.ZeRO1.KV2.full"),
        ):
            self.of_contexts(
                *(LLAMA, *SMALL, *RING, *pairs, f"model_alignment_strategy={strategy}"),
                *("--ranks", 4, "precision=null", "precision.type=fp64"),
                *("--layouts", layout),
            )

    def test_rings_of_emulated_cores_equal_one_cpu_rank(self):
        layouts = "CP4.ZeRO1,TP2.CP2.SP.ZeRO1"
        self.of_contexts(
            LLAMA, *SMALL, *RING, "--ranks", 4, "--layouts", layouts, "--device", "neuron"
        )


class FullySharded(unittest.TestCase):
    def equal(self, *args, least):
        result = verify(*args, "--json")
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        run = [one for one in json.loads(result.stdout)["layouts"] if "illegal" not in one]
        in_fp64 = [one for one in run if one["precision"] == "fp64"]
        self.assertLessEqual(max(one["worst"]["error"] for one in in_fp64), 1e-10)
        self.assertGreaterEqual(len(in_fp64), least)

    def test_an_embedding_that_is_the_head(self):
        self.equal(*TIED, *EIGHT_SAMPLES, "--ranks", 4, "--layouts", "FSDP.DP4,FSDP.TP2", least=6)

    def test_rings_and_dropout(self):
        layouts = ["--layouts", "FSDP.CP2.DP2,FSDP.CP4"]
        hidden = "model.hidden_dropout=0.1"
        self.equal(*MEGATRON, hidden, *EIGHT_SAMPLES, *RING, "--ranks", 4, *layouts, least=6)

    def test_experts(self):
        layouts = ["--layouts", "FSDP.DP4.EP2,FSDP.DP2.TP2.EP2.SP"]
        self.equal(MIXTRAL, *EIGHT_SAMPLES, "--ranks", 4, *layouts, least=6)

    def test_shards_of_emulated_cores_equal_one_cpu_rank(self):
        layouts = ["--layouts", "FSDP.TP2.SP.full", "--device", "neuron"]
        result = verify(LLAMA, *EIGHT_SAMPLES, "--ranks", 4, *layouts)
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])


class Adapters(unittest.TestCase):
    def test_copies_of_heads_have_copies_of_their_adapters(self):
        peft = "peft: {lora_rank: 2, lora_dropout: 0.1, target_modules: [qkv_proj, o_proj]}"
        result = verify(
            *(LLAMA, *SMALL, "model.num_layers=2", "model.qkv_linear=true"),
            f"data.train_dir={SOURCE / 'examples/alignment/answers.jsonl'}",
            f"model_alignment_strategy={{sft: {{}}, {peft}}}",
            *("--ranks", 4, "--layouts", "TP4.SP.ZeRO1.KV2.full,TP4.SP.KV4.full", "--steps", 2),
            *("precision=null", "precision.type=fp64", "--json"),
        )
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        run = [one for one in json.loads(result.stdout)["layouts"] if "illegal" not in one]
        self.assertLessEqual(max(one["worst"]["error"] for one in run), 1e-10)
        self.assertEqual({one["layout"].split()[-2] for one in run}, {"KV2", "KV4"})


class Experts(unittest.TestCase):
    def test_layouts_with_expert_parallelism_equal_one_rank(self):
        """Without recomputation and copies of heads; the others are in the C++ tests."""
        result = verify(
            MIXTRAL,
            *EIGHT_SAMPLES,
            "--ranks",
            8,
            "--layouts",
            "EP2.TP2.SP.ZeRO1,EP2.PP2.ZeRO1,EP4.PP2,EP8,EP4.TP2.ZeRO1.full",
            "--steps",
            2,
            "precision=null",
            "precision.type=fp64",
            "--json",
        )
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        run = [one for one in json.loads(result.stdout)["layouts"] if "illegal" not in one]
        self.assertLessEqual(max(one["worst"]["error"] for one in run), 1e-10)
        chosen = {one["layout"] for one in run}
        for layout in ("TP2 DP4 EP2 SP ZeRO1", "PP2 DP4 EP4", "DP8 EP8 ZeRO1"):
            self.assertIn(layout, chosen)

    def test_shuffled_tokens_come_back(self):
        """One rank has no one to shuffle with; nothing is dropped and no loss is of the tokens that
        a rank sees, so the numbers are the same."""
        run = self.shuffled("model.moe.router_aux_loss_coef=0")
        legal = {one["layout"] for one in run if "illegal" not in one}
        self.assertTrue({"DP2", "TP2"} <= legal, run)
        for one in self.shuffled():
            if one["layout"] == "DP2":
                self.assertIn("model.moe.router_aux_loss_coef: expected 0", one["illegal"])

    def shuffled(self, *more):
        result = verify(
            MIXTRAL,
            "distributed_strategy.token_shuffle_group_size=2",
            *("model.moe.dropless=true", "model.moe.capacity_factor=0.0", *more),
            *("--ranks", 2, "--layouts", "DP2,TP2", "--steps", 1),
            *("precision=null", "precision.type=fp64", "--json"),
        )
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        return json.loads(result.stdout)["layouts"]

    def test_adapters_on_their_attention_and_shared_experts(self):
        strategy = "{sft: {}, peft: {lora_rank: 2, lora_dropout: 0.1, target_modules: %s}}"
        targets = "[qkv_proj, o_proj, shared_experts.gate_up_proj, shared_experts.down_proj]"
        result = verify(
            *(MIXTRAL, *SMALL, "model.num_layers=2", "model.moe.num_shared_experts=1"),
            f"data.train_dir={SOURCE / 'examples/alignment/answers.jsonl'}",
            f"model_alignment_strategy={strategy % targets}",
            *("--ranks", 4, "--layouts", "EP2.TP2.SP.ZeRO1.KV2,PP2.EP2.ZeRO1.full", "--steps", 2),
            *("precision=null", "precision.type=fp64", "--json"),
        )
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])
        run = [one for one in json.loads(result.stdout)["layouts"] if "illegal" not in one]
        self.assertLessEqual(max(one["worst"]["error"] for one in run), 1e-10)
        self.assertGreaterEqual(len(run), 2)

    def test_uneven_exchanges_between_emulated_cores_equal_one_cpu_rank(self):
        result = verify(
            MIXTRAL,
            *SMALL,
            "model.moe.dropless=true",
            "model.moe.capacity_factor=0.0",
            "--ranks",
            4,
            "--layouts",
            "DP4.EP4.ZeRO1,TP2.EP2.SP",
            "--device",
            "neuron",
            "precision=null",
            "precision.type=fp64",
            "--json",
        )
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-3000:])

    def test_half_precision_is_not_compared_and_that_is_said(self):
        args = (MIXTRAL, *SMALL, "--ranks", 2, "--layouts", "DP2.EP2.ZeRO1", "--steps", 1)
        document = json.loads(verify(*args, "--json").stdout)
        self.assertEqual({one["precision"] for one in document["layouts"]}, {"fp64"})
        self.assertIn("mixed_precision: not compared: a rounding may send", verify(*args).stdout)


class FalseAlarms(unittest.TestCase):
    """A slice of benchmarks/trainer/verify_false_alarms.py, with seeds that a tolerance taken from
    one run of one rank rejected."""

    def test_deep_and_narrow_models_are_accepted_in_half_precision(self):
        deep = [
            "model.num_layers=8",
            "model.hidden_size=32",
            "model.ffn_hidden_size=48",
            "model.encoder_seq_length=16",
            "data.global_batch_size=8",
        ]
        for seed, layout in (
            (1, "TP4.KV4.ZeRO1"),
            (2, "TP2.DP2.SP.KV2.ZeRO1"),
            (3, "TP2.DP2.KV2.ZeRO1"),
        ):
            with self.subTest(seed):
                result = verify(
                    LLAMA, *deep, f"seed={seed}", "--ranks", 4, "--layouts", layout, "--json"
                )
                self.assertEqual(
                    result.returncode, 0, result.stdout[-2000:] + result.stderr[-2000:]
                )
                half = [
                    one["worst"]
                    for one in json.loads(result.stdout)["layouts"]
                    if "illegal" not in one and one["precision"] != "fp64"
                ]
                self.assertGreater(len(half), 0)
                for worst in half:
                    self.assertGreater(
                        worst["error"],
                        worst["tolerance"] / 50,
                        "a tolerance that nothing comes near says nothing",
                    )


class Device(unittest.TestCase):
    def test_ranks_on_emulated_cores_equal_one_cpu_rank(self):
        result = verify(
            LLAMA,
            *SMALL,
            "--ranks",
            4,
            "--layouts",
            "TP2.PP2.SP,DP4.ZeRO1,TP4.KV2",
            "--device",
            "neuron",
            "--json",
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        document = json.loads(result.stdout)
        self.assertEqual(document["device"], "neuron")
        run = [one for one in document["layouts"] if "illegal" not in one]
        self.assertGreater(len(run), 20)
        self.assertTrue(all(one["equal"] for one in run))

    def test_a_mistake_is_noticed_there_too(self):
        result = verify(
            LLAMA,
            *SMALL,
            "--ranks",
            2,
            "--layouts",
            "TP2.SP",
            "--steps",
            1,
            "--device",
            "neuron",
            "--seed-bug",
            "norm-gradients-not-summed",
        )
        self.assertEqual(result.returncode, 5, result.stderr[-3000:])
        self.assertRegex(result.stdout, r"DIFFERS  fp64  TP2 SP.*norm.*; layer model\.\S*norm")

    def test_a_machine_that_is_too_small_is_named(self):
        result = verify(LLAMA, "--ranks", 8, "--device", "neuron", "--instance", "trn1.2xlarge")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--ranks 8: a trn1.2xlarge has 2 logical cores", result.stderr)


class SeededBugs(unittest.TestCase):
    def test_each_is_noticed_and_the_first_wrong_tensor_named(self):
        listed = verify(LLAMA, "--seed-bug", "nothing").stderr
        for bug, (layouts, first) in BUGS.items():
            with self.subTest(bug):
                self.assertIn(bug, listed)
                # Without stages two layers are enough; recomputation changes no mistake.
                depth = [] if "PP" in layouts else ["model.num_layers=2"]
                layouts = ",".join(f"{one}.full" for one in layouts.split(","))
                model = {
                    "tied-embedding-missed": TIED,
                    "dropout-seed-shared": DROPOUT,
                    "context-counts-own-labels": [LLAMA, *RING],
                    "blocks-arrive-late": [LLAMA, *RING],
                }.get(bug, [MIXTRAL if bug in OF_EXPERTS else LLAMA])
                result = verify(
                    *model,
                    *SMALL,
                    *depth,
                    "--ranks",
                    4,
                    "--layouts",
                    layouts,
                    "--seed-bug",
                    bug,
                    "--steps",
                    2,
                    "--json",
                )
                self.assertEqual(result.returncode, 5, result.stderr[-3000:])
                for one in json.loads(result.stdout)["layouts"]:
                    if "illegal" in one or (one["precision"] != "fp64" and bug in BELOW_THE_NOISE):
                        continue
                    self.assertFalse(one["equal"], (one["layout"], one["precision"]))
                    if one["precision"] == "fp64":
                        self.assertIn(first, one["first_bad"]["what"])
                        tensor = one["first_bad_tensor"]
                        self.assertIn(f" {tensor['layer']}.", tensor["what"])
        self.assertEqual(listed.count(","), len(BUGS) - 1, "a bug has no row here")


class BadInput(unittest.TestCase):
    def fails(self, *args, code=2, text):
        result = verify(*args)
        self.assertEqual(result.returncode, code, result.stderr[-2000:])
        self.assertIn(text, result.stderr)

    def test_each_has_its_text(self):
        self.fails("missing.yaml", text="missing.yaml")
        self.fails(LLAMA, "--layouts", "TP2.XY", text='"XY": expected TP2, PP2')
        self.fails(LLAMA, "--ranks", 3, "--layouts", "TP3", text="no layout is legal")
        self.fails(LLAMA, "model.num_layer=3", text="num_layers")
        self.fails(
            LLAMA, "--ranks", 2, "--seed-bug", "dropout-seed-shared", text="the model needs dropout"
        )


if __name__ == "__main__":
    unittest.main()
