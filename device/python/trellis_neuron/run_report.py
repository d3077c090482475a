"""The report of a Python program in the form of `trellis simulate`, which `trellis report`, `diff`,
`gate` and `cost` read (schema trellis.run_report/1)."""

import json
import pathlib
from typing import Any

from .report import RunReport


def run_report(
    report: RunReport, *, name: str, parameters: int, tokens_per_step: int
) -> dict[str, Any]:
    """Of the last step. Its FLOPs are those that the program executed, so that MFU counts
    recomputation too. Ranks that did nothing are left out."""
    if not report.steps:
        raise RuntimeError("save: no step ended, so there is nothing to report")
    if tokens_per_step < 1:
        raise ValueError(f"save: tokens_per_step: expected at least 1, got {tokens_per_step}")
    step, ranks = report.steps[-1], set(report.ranks())
    coverage, world = step["coverage"], len(ranks)
    flops = coverage["lowered_flops"] + coverage["estimated_flops"]
    seconds = step["step_time_ps"] * 1e-12
    denominator = step["peak_flops_per_core"] * world
    return {
        "schema": "trellis.run_report/1",
        "verb": "python",
        "name": name,
        "device": "neuron",
        "world_size": world,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "data_parallel_size": world,
        "num_microbatches": 1,
        "parameters": parameters,
        "tokens_per_step": tokens_per_step,
        "model_flops_per_step": flops,
        "precision": "as the program chose",
        "steps": len(report.steps) + report.earlier["steps"],
        "max_steps": len(report.steps) + report.earlier["steps"],
        "interrupted": False,
        "instance": report.session["instance"],
        "nodes": report.session["nodes"],
        "step_time_ms": seconds * 1e3,
        "tokens_per_s": tokens_per_step / seconds if seconds else 0.0,
        "mfu": flops / (seconds * denominator) if seconds else 0.0,
        "mfu_denominator_flops": denominator,
        "simulated": {**step, "breakdown": _of(ranks, step["breakdown"])},
        "memory": {**report.memory, "ranks": _of(ranks, report.memory["ranks"])},
        "portability": [row for row in report.portability["operators"] if not row["portable"]],
        "unused_core_share": 1 - world / step["logical_cores"],
    }


def _of(ranks: set[int], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["rank"] in ranks]


def write(folder: pathlib.Path, content: dict[str, Any]) -> None:
    """folder/report.json, which is there as a whole or as it was before."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "report.json.partial"
    partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    partial.replace(folder / "report.json")
