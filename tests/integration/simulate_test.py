#!/usr/bin/env python3
"""`trellis simulate` at scale: equal ranks stand for each other and change nothing; the size of the cluster costs nothing."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def simulate(self, *args, code=0):
        result = subprocess.run([TRELLIS, "simulate", QUICKSTART, "--json", *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=300)
        self.assertEqual(result.returncode, code, result.stderr[-3000:])
        return json.loads(result.stdout) if code == 0 else result.stderr

    def layout(self, ranks, tp, pp, dp, *more, nodes=1, instance="trn1.32xlarge"):
        """The quickstart's model, wide enough for `tp`, on `ranks` ranks per node."""
        return [f"trainer.devices={ranks}", f"trainer.num_nodes={nodes}", "--nodes", nodes, "--instance", instance,
                f"distributed_strategy.tensor_model_parallel_size={tp}", f"distributed_strategy.pipeline_model_parallel_size={pp}",
                f"data.global_batch_size={4 * dp}", "data.micro_batch_size=1", "model.num_layers=4", "model.num_attention_heads=8",
                "model.num_kv_heads=8", "model.hidden_size=256", "model.ffn_hidden_size=512", *more]


def figures(row):
    return {key: value for key, value in row.items() if key not in ("rank", "represents")}


class Folding(Case):
    LAYOUTS = {
        "tp8": (8, 8, 1, 1),
        "dp8": (8, 1, 1, 8, "distributed_strategy.sequence_parallel=false"),
        "tp2-pp2-dp8": (32, 2, 2, 8, "distributed_strategy.zero1=true", "distributed_strategy.sequence_parallel=true"),
        "tp8-dp4": (32, 8, 1, 4, "distributed_strategy.zero1=true", "distributed_strategy.sequence_parallel=true"),
        "tp4-dp8": (32, 4, 1, 8, "distributed_strategy.zero1=true"),
        "pp4-dp2": (8, 1, 4, 2, "distributed_strategy.sequence_parallel=false"),
    }

    def compare(self, folded, unfolded, world):
        """Every figure of a rank that ran beside those of all ranks that it stands for."""
        self.assertEqual(folded["simulated"]["step_time_ps"], unfolded["simulated"]["step_time_ps"])
        for whole, part in ((unfolded["simulated"]["breakdown"], folded["simulated"]["breakdown"]), (unfolded["memory"]["ranks"], folded["memory"]["ranks"])):
            self.assertEqual(len(whole), world)
            self.assertEqual(sum(row["represents"] for row in part), world)
            self.assertTrue(all(row["represents"] == 1 for row in whole))
            by_rank = {row["rank"]: figures(row) for row in whole}
            per_stage = world // len(part)
            for row in part:
                for rank in range(row["rank"], row["rank"] + per_stage):
                    self.assertEqual(figures(row), by_rank[rank], f"rank {rank} of {world}, for which rank {row['rank']} stands")

    def test_changes_nothing(self):
        for name, (ranks, tp, pp, dp, *more) in self.LAYOUTS.items():
            with self.subTest(name):
                arguments = self.layout(ranks, tp, pp, dp, *more)
                self.compare(self.simulate(*arguments), self.simulate(*arguments, "--no-fold"), ranks)

    def test_changes_nothing_on_several_instances_and_other_generations(self):
        for instance, nodes, ranks, tp, pp, dp in (("trn1.32xlarge", 2, 32, 8, 2, 4), ("trn1.32xlarge", 4, 16, 8, 1, 8), ("trn2.48xlarge", 1, 64, 8, 2, 4)):
            with self.subTest(f"{nodes} × {instance}"):
                arguments = self.layout(ranks, tp, pp, dp, "distributed_strategy.zero1=true", nodes=nodes, instance=instance)
                self.compare(self.simulate(*arguments), self.simulate(*arguments, "--no-fold"), ranks * nodes)


class Scale(Case):
    def test_more_replicas_than_ranks_fit_a_process(self):
        report = self.simulate(*self.layout(32, 8, 2, 256, nodes=128))
        self.assertEqual(report["world_size"], 4096)
        self.assertEqual([row["represents"] for row in report["simulated"]["breakdown"]], [2048, 2048])
        self.assertIn("simulated", report)

    def test_every_rank_of_a_large_world_is_refused_with_what_to_do(self):
        self.assertIn("127 ranks", self.simulate(*self.layout(32, 8, 2, 16, nodes=8), "--no-fold", code=2))


if __name__ == "__main__":
    unittest.main()
