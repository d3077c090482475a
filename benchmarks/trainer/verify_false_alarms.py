#!/usr/bin/env python3
"""Does `trellis verify` ever reject a correct layout in half precision? Many seeds over five shapes
of model.

    benchmarks/trainer/verify_false_alarms.py --seeds 200

Each seed takes one of the shapes and two of the layouts below one after the other. Prints every
false alarm, and of each shape how near the worst number came to its tolerance. Exit code 1: there
was a false alarm. Environment: TRELLIS, the program.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
LLAMA = SOURCE / "examples/verify_llama.yaml"
GPT = SOURCE / "examples/quickstart.yaml"


def sizes(layers, hidden, ffn, sequence, batch=8):
    return [
        f"model.num_layers={layers}",
        f"model.hidden_size={hidden}",
        f"model.ffn_hidden_size={ffn}",
        f"model.encoder_seq_length={sequence}",
        f"data.global_batch_size={batch}",
        "data.micro_batch_size=1",
    ]


SHAPES = {
    "deep and narrow Llama": [LLAMA, *sizes(8, 32, 48, 16)],
    "shallow Llama": [LLAMA, *sizes(2, 64, 176, 16)],
    "wide Llama": [LLAMA, *sizes(4, 128, 352, 16, 4)],
    "GPT with biases": [
        GPT,
        *sizes(4, 32, 48, 16),
        "model.has_bias=true",
        "model.normalization=layernorm",
        "model.activation=gelu",
    ],
    "tied GPT with dropout": [
        GPT,
        *sizes(6, 48, 96, 16),
        "model.num_attention_heads=4",
        "model.share_embeddings_and_output_weights=true",
        "model.hidden_dropout=0.1",
        "model.attention_dropout=0.1",
    ],
}
# Of a shape's legal ones.
LAYOUTS = {
    LLAMA: [
        "TP4.ZeRO1.KV4",
        "TP2.DP2.ZeRO1.SP.KV2",
        "TP2.PP2.ZeRO1.SP",
        "TP4.SP.KV2",
        "DP4.ZeRO1",
        "PP2.DP2.ZeRO1",
    ],
    GPT: [
        "TP2.DP2.ZeRO1.SP",
        "TP2.PP2.ZeRO1.SP",
        "DP4.ZeRO1",
        "PP2.DP2.ZeRO1",
        "TP2.DP2",
        "TP2.PP2.ZeRO1",
    ],
}


def run(seed):
    """Runs in half precision of one seed: (shape, ratio of error and tolerance, what, layout)."""
    shape = list(SHAPES)[seed % len(SHAPES)]
    layouts = LAYOUTS[SHAPES[shape][0]]
    chosen = {layouts[(seed // len(SHAPES) + k) % len(layouts)] for k in (0, 3)}
    command = [
        TRELLIS,
        "verify",
        *map(str, SHAPES[shape]),
        f"seed={seed}",
        "--ranks",
        "4",
        "--layouts",
        ",".join(sorted(chosen)),
        "--json",
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode not in (0, 5):
        sys.exit(
            f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stderr[-2000:]}"
        )
    document = json.loads(result.stdout)
    rows = []
    for one in document["layouts"]:
        if "illegal" in one or one["precision"] == "fp64":
            continue
        worst = one["worst"]
        rows.append(
            (
                shape,
                worst["error"] / worst["tolerance"] if worst["tolerance"] else float("inf"),
                worst["what"],
                one["layout"],
            )
        )
    return rows, document["derived_tolerances"]["times_the_noise"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    ratios, alarms, factor = {shape: [] for shape in SHAPES}, 0, 0
    for seed in range(options.first, options.first + options.seeds):
        rows, factor = run(seed)
        for shape, ratio, what, layout in rows:
            ratios[shape].append((ratio, seed, what, layout))
            if ratio > 1:
                alarms += 1
                print(
                    f"FALSE ALARM seed {seed}, {shape}, {layout}: {what}: {ratio:.2f} × its "
                    "tolerance",
                    flush=True,
                )
    for shape, found in ratios.items():
        if found:
            ratio, seed, what, layout = max(found)
            print(
                f"{shape}: {len(found)} runs of {len({s for _, s, _, _ in found})} seeds, worst "
                f"{ratio:.2f} × the tolerance (seed {seed}, {layout}: {what})"
            )
    print(f"{options.seeds} seeds, {alarms} false alarms; last tolerance {factor:.2f} × the noise")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
