"""Memory does not grow with the number of steps: 9,000 of them (20,000 in scripts/judge), inside
and outside of simulate()."""

import gc
import os
import unittest

import torch
import trellis_neuron

STEPS = 20_000 if os.environ.get("TRELLIS_JUDGE") == "1" else 9_000
SETTLED = 4_000  # steps, by which most of what is bounded is full
# Bytes from there on, half a KiB of each step. Before it was bounded, memory grew by 6 KiB per
# step, in simulate() by 17.
MOST = (STEPS - SETTLED) * 512


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth():
    """Bytes that training a small model adds once it has settled."""
    model = torch.nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.ones(2, 4, device="neuron")
    before = 0
    for step in range(STEPS):
        if step == SETTLED:
            before = resident_bytes()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return resident_bytes() - before


class Growth(unittest.TestCase):
    def test_recorded_steps(self):
        self.assertLess(growth(), MOST)

    def test_simulated_steps(self):
        with trellis_neuron.simulate() as run:
            grown = growth()
        self.assertLess(grown, MOST)
        report = run.report()
        self.assertEqual(len(report.steps) + report.earlier["steps"], STEPS)
        self.assertEqual(
            [step["step"] for step in report.steps], list(range(STEPS - len(report.steps), STEPS))
        )
        last = report.steps[-1]["step_time_ps"]
        self.assertGreaterEqual(report.earlier["longest_ps"], last)
        self.assertAlmostEqual(
            report.earlier["step_time_ps"] / report.earlier["steps"], last, delta=0.01 * last
        )
        self.assertIn(f"… {STEPS - 8} earlier steps", str(report))


if __name__ == "__main__":
    unittest.main()
