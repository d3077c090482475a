#!/usr/bin/env python3
"""Attention with a mask is causal all the same: above the diagonal nothing is computed."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
MODEL = [
    "trainer.devices=1",
    "distributed_strategy.tensor_model_parallel_size=1",
    "distributed_strategy.pipeline_model_parallel_size=1",
    "data.global_batch_size=4",
    "data.micro_batch_size=1",
    "model.num_layers=4",
    "model.num_attention_heads=8",
    "model.num_kv_heads=8",
    "model.hidden_size=256",
    "model.ffn_hidden_size=512",
    "model.encoder_seq_length=2048",
    "model.max_position_embeddings=2048",
]


class Masks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = temporary.name

    def attention(self, *args):
        """FLOPs of a step, and picoseconds of its attention."""
        result = subprocess.run(
            [TRELLIS, "simulate", SOURCE / "examples/quickstart.yaml", "--json", "--no-cache"]
            + [*MODEL, *args],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        report = json.loads(result.stdout)["simulated"]
        self.assertEqual(report["coverage"]["estimated"], [])
        rows = report["attribution"]["rows"]
        time = sum(row["time_ps"] for row in rows if "flash_attention" in row["operator"])
        return report["coverage"]["lowered_flops"], time

    def test_windows_and_packed_documents_cost_half_the_square(self):
        flops, time = self.attention()
        for mask in (
            "model.sliding_window_size=1500",
            "model_alignment_strategy={sft: {packing: true}}",
        ):
            with self.subTest(mask):
                masked_flops, masked_time = self.attention(mask)
                self.assertLess(abs(masked_flops - flops), 0.02 * flops)
                self.assertGreater(masked_time, 1.05 * time)  # the mask is read and added
                self.assertLess(masked_time, 1.6 * time)


if __name__ == "__main__":
    unittest.main()
