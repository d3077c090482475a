#!/usr/bin/env python3
"""Attention with a mask is causal all the same: above the diagonal nothing is computed."""

import unittest

from simulate_case import Case


class Masks(Case):
    def attention(self, *args):
        """FLOPs of a step, and picoseconds of its attention."""
        size = ("model.encoder_seq_length=2048", "model.max_position_embeddings=2048")
        report = self.simulate("--no-cache", *self.layout(1, 1, 1, 1, *size), *args)["simulated"]
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
