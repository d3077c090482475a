"""Trains a small Hugging Face Llama on four emulated NeuronCores and says where the simulated time
went.

.venv/bin/python examples/python/train_llama.py            (PYTHONPATH=device/python, unless
trellis_neuron is installed)
"""

import argparse

import torch
import torch.distributed as dist
import trellis_neuron
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, SEQUENCE, VOCABULARY = 2, 64, 512


def train(rank, steps):
    dist.init_process_group("neuron")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = DistributedDataParallel(LlamaForCausalLM(config).to("neuron"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(
        VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(rank)
    ).to("neuron")
    losses = []
    for _ in range(steps):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instance", default="trn2.48xlarge")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--trace", help="where to write the last step's timeline (Perfetto)")
    options = parser.parse_args()
    with trellis_neuron.simulate(
        options.instance, tokens_per_step=options.ranks * BATCH * SEQUENCE
    ) as run:
        losses = trellis_neuron.run_ranks(train, options.ranks, options.steps)
    print("losses of rank 0:", " ".join(f"{loss:.4f}" for loss in losses[0]))
    print(run)
    if options.trace:
        run.write_trace(options.trace)


if __name__ == "__main__":
    main()
