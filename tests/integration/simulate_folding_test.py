#!/usr/bin/env python3
"""Equal ranks represent each other, which changes nothing."""

import json
import unittest

from simulate_case import LLAMA, Case, figures


class Folding(Case):
    LAYOUTS = {
        "tp8": (8, 8, 1, 1),
        "dp8": (8, 1, 1, 8, "distributed_strategy.sequence_parallel=false"),
        # Two of a row's four chips hold each stage: the way from stage to stage passes other
        # transfers for one replica than for the other.
        "tp2-pp2-dp2": (
            8,
            2,
            2,
            2,
            "distributed_strategy.zero1=true",
            "distributed_strategy.sequence_parallel=true",
        ),
        "tp2-pp2-dp8": (
            32,
            2,
            2,
            8,
            "distributed_strategy.zero1=true",
            "distributed_strategy.sequence_parallel=true",
        ),
        "tp8-dp4": (
            32,
            8,
            1,
            4,
            "distributed_strategy.zero1=true",
            "distributed_strategy.sequence_parallel=true",
        ),
        "tp4-dp8": (32, 4, 1, 8, "distributed_strategy.zero1=true"),
        "tp4-dp8, fully sharded": (32, 4, 1, 8, "distributed_strategy.fsdp=true"),
        "interleaved": (32, 4, 2, 4, "distributed_strategy.virtual_pipeline_model_parallel_size=2"),
        "pp4-dp2": (8, 1, 4, 2, "distributed_strategy.sequence_parallel=false"),
    }

    def compare(self, folded, unfolded, world):
        """The figures of all ranks, each of those that ran as often as it represents others."""
        self.assertEqual(folded["simulated"]["step_time_ps"], unfolded["simulated"]["step_time_ps"])
        for whole, part in (
            (unfolded["simulated"]["breakdown"], folded["simulated"]["breakdown"]),
            (unfolded["memory"]["ranks"], folded["memory"]["ranks"]),
        ):
            self.assertEqual(len(whole), world)
            self.assertTrue(all(row["represents"] == 1 for row in whole))
            by_rank = {row["rank"]: figures(row) for row in whole}
            for row in part:
                self.assertEqual(
                    figures(row), by_rank[row["rank"]], f"rank {row['rank']} of {world}"
                )
            everyone = [
                json.dumps(figures(row), sort_keys=True)
                for row in part
                for _ in range(row["represents"])
            ]
            self.assertEqual(
                sorted(everyone), sorted(json.dumps(figures(row), sort_keys=True) for row in whole)
            )

    def test_changes_nothing(self):
        for name, (ranks, tp, pp, dp, *more) in self.LAYOUTS.items():
            with self.subTest(name):
                arguments = self.layout(ranks, tp, pp, dp, *more)
                self.compare(
                    self.simulate(*arguments), self.simulate(*arguments, "--no-fold"), ranks
                )

    def test_changes_nothing_where_ranks_with_the_same_heads_are_not_equal(self):
        """Each group of four copies has ranks of both classes, and no group has both that run."""
        arguments = (
            *self.layout(32, 16, 1, 2, "distributed_strategy.kv_replicator=4"),
            *("model.hidden_size=4096", "model.encoder_seq_length=4096", "model.num_layers=2"),
            *("model.max_position_embeddings=4096", "data.global_batch_size=4"),
            *("model.num_attention_heads=32", "model.num_kv_heads=4"),
            # With it, ranks have other parts of the copied weights, which their norm counts less.
            "distributed_strategy.zero1=false",
        )
        folded, unfolded = (
            self.simulate(*arguments, *more, config=LLAMA) for more in ((), ("--no-fold",))
        )
        self.assertEqual([row["rank"] for row in folded["simulated"]["breakdown"]], [0, 2])
        self.compare(folded, unfolded, 32)

    def test_changes_nothing_on_several_instances_and_other_generations(self):
        for instance, nodes, ranks, tp, pp, dp in (
            ("trn1.32xlarge", 2, 32, 8, 2, 4),
            ("trn1.32xlarge", 4, 16, 8, 1, 8),
            ("trn2.48xlarge", 1, 64, 8, 2, 4),
        ):
            with self.subTest(f"{nodes} × {instance}"):
                arguments = self.layout(
                    ranks,
                    tp,
                    pp,
                    dp,
                    "distributed_strategy.zero1=true",
                    nodes=nodes,
                    instance=instance,
                )
                self.compare(
                    self.simulate(*arguments), self.simulate(*arguments, "--no-fold"), ranks * nodes
                )


if __name__ == "__main__":
    unittest.main()
