#!/usr/bin/env python3
"""No command is silent for more than 2 s: long verbs, with stderr in a pipe. Environment: TRELLIS,
the program."""

import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from cli_case import PACKAGE, SOURCE, TRELLIS

LARGE = SOURCE / "examples/nxdt/hf_llama3_70B_trn2_config.yaml"
LLAMA_8B = SOURCE / "examples/llama3_8b_trn1.yaml"
SILENCE_S = 2
LOADED = 2  # other processes use the cores of this host

RESNET = f"""
import sys
import torchvision_package
torchvision_package.add()
import trellis_neuron
sys.path.append("{SOURCE}/examples/python/libraries")
import torchvision_resnet
print("imported", flush=True)
with trellis_neuron.simulate("trn2.48xlarge") as run:
    torchvision_resnet.train("neuron")
"""


class Progress(unittest.TestCase):
    def gaps(self, *args, code=0, program=TRELLIS, env=None, since=None):
        """Runs a program. From its line `since` on: the longest time without a line on stdout or
        stderr, what stderr said, and the time that it took."""
        with tempfile.TemporaryDirectory() as directory:
            process = subprocess.Popen(
                [program, *map(str, args)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=directory,
                env={**os.environ, "TRELLIS_CACHE": directory, **(env or {})},
            )
            times, lines = [time.monotonic()], []

            def listen(stream, kept):
                for line in stream:
                    if line.strip() == since:
                        times.clear()
                    times.append(time.monotonic())
                    kept.append(line)

            out = threading.Thread(target=listen, args=(process.stdout, []))
            out.start()
            listen(process.stderr, lines)
            out.join()
            self.assertEqual(process.wait(), code, "".join(lines[-5:]))
            times.append(time.monotonic())
        times.sort()
        return max(b - a for a, b in zip(times, times[1:])), "".join(lines), times[-1] - times[0]

    def check(self, *args, says, code=0, **kwargs):
        gap, text, took = self.gaps(*args, code=code, **kwargs)
        self.assertLess(
            gap,
            SILENCE_S * LOADED,
            f"{args}: silent for {gap:.1f} s of {took:.1f} s\n{text[-1000:]}",
        )
        if took > 2 * SILENCE_S:
            self.assertRegex(text, says)

    def test_schedule_of_a_long_pipeline(self):
        self.check(
            "schedule", "--pp", 1000, "--micro-batches", 2000, says=r"\.\.\. .*(schedule|passes)"
        )

    def test_a_convolution_network_in_python(self):
        """From when its libraries are imported."""
        paths = [PACKAGE["PYTHONPATH"], SOURCE / "tests/python"]
        self.check(
            *("-B", "-c", RESNET),
            says=r"\.\.\. (compiling and timing|simulate\(\): the program runs)",
            program=sys.executable,
            since="imported",
            env={**PACKAGE, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )

    def test_simulate_70b(self):
        self.check(
            "simulate",
            LARGE,
            "data.global_batch_size=64",
            says=r"\.\.\. (\d+ ranks? runs? step|compiling and timing|timing the "
            r"step|writing|explaining)",
        )

    def test_memory_70b(self):
        self.check("memory", LARGE, says=r"\.\.\. .*(ranks run|adding up)")

    def test_the_kernels_rows_of_accuracy(self):
        self.check(
            "accuracy", "kernels", says=r"\.\.\. timing published rows of kernels: \d+ of \d+"
        )

    def test_judging_the_layouts_of_a_sweep(self):
        self.check(
            "sweep",
            LLAMA_8B,
            "--nodes",
            4,
            "--only",
            "tp=1",
            "--only",
            "pp=1",
            "--only",
            "recompute=none",
            "--top",
            1,
            says=r"\.\.\. (judging|simulating)",
        )


if __name__ == "__main__":
    unittest.main()
