"""What each mechanism of the model explains: the published rows that get worse without it.

The mechanisms are in benchmarks/published/mechanisms.yaml, what was measured is in ablation.json
next to it, and docs/accuracy.md shows the table.
"""

import json
import math
import statistics

import yaml
from docs_tools.commands import SOURCE

MECHANISMS = SOURCE / "benchmarks/published/mechanisms.yaml"
RECORD = SOURCE / "benchmarks/published/ablation.json"
WORSE = 0.02  # of the published time: smaller changes are not counted


def pairs(subjects):
    """(mechanism, subject) of these subjects, in the order of the file."""
    document = yaml.safe_load(MECHANISMS.read_text())
    return [
        (mechanism, subject)
        for mechanism in document["mechanisms"]
        for subject in mechanism["subjects"]
        if subject in subjects
    ]


def errors(record):
    return {row["id"]: row["error"] for row in record["rows"]}


def quantile(values, share):
    """The smallest value that this share does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def comparison(before, without):
    """Of errors by row. A row that cannot be run without the mechanism is not compared."""
    common = sorted(before.keys() & without.keys())
    growth = {name: abs(without[name]) - abs(before[name]) for name in common}
    worse = sorted((name for name in common if growth[name] > WORSE), key=lambda n: -growth[n])
    sizes = [abs(without[name]) for name in common]
    return {
        "rows": len(common),
        "median": statistics.median(sizes),
        "p90": quantile(sizes, 0.9),
        "worse": len(worse),
        "better": sum(change < -WORSE for change in growth.values()),
        "worst": [[name, before[name], without[name]] for name in worse[:3]],
    }


def measure(run, before, subjects, say=lambda text: None):
    """Record: "KEY=VALUE subject" -> comparison. run(subject, *options) gives the record of one
    call of `trellis accuracy`; before has those with all mechanisms."""
    found = {}
    for mechanism, subject in pairs(subjects):
        say(f"{subject} without: {mechanism['name']}")
        without = run(subject, "--set", mechanism["set"])
        found[f"{mechanism['set']} {subject}"] = rounded(
            comparison(errors(before[subject]), errors(without))
        )
    return found


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def as_text(record):
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(record[name], sort_keys=True)}"
        for name in sorted(record)
    )
    return "{\n" + lines + "\n}\n"


def rows(percent, signed):
    """Of the table, for the mechanisms that were measured."""
    record = json.loads(RECORD.read_text())
    for mechanism, subject in pairs(("kernels", "dma", "collectives", "training")):
        row = record[f"{mechanism['set']} {subject}"]
        worst = "; ".join(
            f"{name} {signed(before)} → {signed(without)}" for name, before, without in row["worst"]
        )
        yield (
            f"{mechanism['name']} (without: {mechanism['without']})",
            f"`{subject}`",
            percent(row["median"]),
            percent(row["p90"]),
            f"{row['worse']} of {row['rows']}",
            row["better"],
            worst or "–",
        )


def fitted_rows():
    """Of the table of fitted numbers: generation or software, number, value, rows, meaning."""
    for path in sorted(
        (SOURCE / "sim/config/calibration").glob("*.yaml"),
        key=lambda path: (not path.stem.startswith("trn"), path.stem),
    ):
        for name, entry in yaml.safe_load(path.read_text())["parameters"].items():
            yield (
                path.stem,
                f"`{name}`",
                str(entry["value"]).replace(" us", " µs"),
                ", ".join(entry["fitted_on"]),
                entry["meaning"],
            )
