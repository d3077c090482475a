#!/usr/bin/env python3
"""A training step of a small Llama of transformers in Python: on the CPU, recorded on `neuron`, and
inside simulate(); rounds of the three alternate, on the process's CPU clock. Needs the built
library (build/release, or TRELLIS_NEURON_LIBRARY).

  benchmarks/device/python_step.py [ROUNDS]

Bars: recorded <= 1.15 x CPU; simulate() adds <= 5 % to a recorded step. The first step on the
device, which compiles, is shown separately."""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "device/python"))

import torch
import transformers
import trellis_neuron

SEQUENCE, VOCABULARY, STEPS = 256, 2048, 4


class Training:
    def __init__(self, device):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=SEQUENCE,
        )
        self.model = transformers.LlamaForCausalLM(config).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        draw = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(VOCABULARY, (1, SEQUENCE), generator=draw).to(device)

    def step(self):
        start = time.process_time()
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - start


def recorded(training):
    seconds = training.step()
    torch.ops.trellis.discard_step()
    return seconds


def main(rounds):
    torch.set_num_threads(1)
    cpu, neuron = Training("cpu"), Training("neuron")
    with trellis_neuron.simulate("trn2.48xlarge"):
        first = neuron.step()
    seconds = {"CPU": [], "recorded": [], "simulate()": []}
    for _ in range(rounds):
        seconds["CPU"] += [cpu.step() for _ in range(STEPS)]
        seconds["recorded"] += [recorded(neuron) for _ in range(STEPS)]
        with trellis_neuron.simulate("trn2.48xlarge"):
            seconds["simulate()"] += [neuron.step() for _ in range(STEPS)]
    base = min(seconds["CPU"]), statistics.median(seconds["CPU"])
    print(f"first step on the device, with simulate(): {first * 1e3:.0f} ms of CPU")
    for name, each in seconds.items():
        least, median = min(each), statistics.median(each)
        print(
            f"{name:11} {least * 1e3:7.1f} ms ({least / base[0]:.3f} x CPU), "
            f"median {median * 1e3:7.1f} ms ({median / base[1]:.3f} x CPU)"
        )
    added = min(seconds["simulate()"]) / min(seconds["recorded"]) - 1
    print(f"simulate() adds {100 * added:.1f} % to the least recorded step")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
