"""docs/accuracy.md, the one page with figures of accuracy.

It is made of accuracy_page.md and three records in benchmarks/published: predicted.json,
validated.yaml and ablation.json.
"""

import json
import pathlib
import re
import statistics
import subprocess

import yaml
from docs_tools import ablation
from docs_tools.commands import SOURCE
from docs_tools.reference import NOTE

RECORD = SOURCE / "benchmarks/published/predicted.json"
TEMPLATE = pathlib.Path(__file__).with_name("accuracy_page.md")
VALIDATED = SOURCE / "benchmarks/published/validated.yaml"
QUICK = ("kernels", "dma", "collectives")
UNPRINTED = "70B-one-node"  # its layout is not published


def short(value):
    if isinstance(value, dict):
        return {name: short(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def measure(workplace, subject, *options):
    """What `trellis accuracy SUBJECT --json` says, without what no page shows."""
    command = [workplace.folder / "bin/trellis", "accuracy", subject, "--json", *options]
    done = subprocess.run(
        command,
        env=workplace.environment,
        cwd=workplace.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    names = (
        "id",
        "group",
        "instance",
        "nodes",
        "parameters",
        "groups",
        "use",
        "error",
        "published_s",
        "predicted_s",
        "micro_batch",
        "telemetry",
        "published_us",
        "model_us",
        "verdict",
        "result",
        "published_fits",
        "published_gib_per_core",
        "needed_gib",
        "real_span_us",
        "simulated_span_us",
        "start_error",
    )
    rows = [{name: short(row[name]) for name in names if name in row} for row in document["rows"]]
    record = {"rows": sorted(rows, key=lambda row: row["id"])}
    for name in ("summaries", "trend"):
        if name in document:
            record[name] = json.loads(
                json.dumps(document[name]), parse_float=lambda text: short(float(text))
            )
    if "leave_one_family_out" in document:
        record["leave_one_family_out"] = {
            name: short(document["leave_one_family_out"][name])
            for name in ("median", "p90", "worst")
        }
    if "cross_validation" in document:
        record["cross_validation"] = short(document["cross_validation"])
    return record


def measure_all(workplace, subjects):
    """The record with new measurements of these subjects."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for subject in subjects:
        record[subject] = measure(workplace, subject)
        if subject in QUICK:
            record[subject]["published_only"] = summary(
                measure(workplace, subject, "--published-only"), "all"
            )
        if subject == "instructions":
            record[subject]["modelled"] = measure(workplace, subject, "--transfers", "modelled")[
                "rows"
            ]
    return record


def measure_mechanisms(workplace, subjects=(*QUICK, "training"), say=lambda text: None):
    """The record of what each mechanism explains, against the record of predictions."""
    before = json.loads(RECORD.read_text())

    def run(subject, *options):
        return measure(workplace, subject, *options)

    return ablation.measure(run, before, subjects, say)


def as_text(record):
    """One row a line, so that a change is a change of lines."""
    parts = []
    for subject in sorted(record):
        members = []
        for name, value in sorted(record[subject].items()):
            lines = (
                ",\n".join(
                    "   " + json.dumps(row, ensure_ascii=False, sort_keys=True) for row in value
                )
                if isinstance(value, list)
                else None
            )
            members.append(
                f"  {json.dumps(name)}: "
                + (f"[\n{lines}\n  ]" if lines else json.dumps(value, sort_keys=True))
            )
        parts.append(f" {json.dumps(subject)}: {{\n" + ",\n".join(members) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def percent(value):
    """Two digits."""
    value = 100 * value
    return (
        f"{value:.0f} %"
        if value >= 9.95
        else f"{value:.1f} %"
        if value >= 0.995
        else f"{value:.2f} %"
    )


def signed(value):
    return f"{100 * value:+.1f} %".replace("-", "−")


def number(name, file, member):
    """The value of `NAME` in a mapping of a file of sim/."""
    entries = yaml.safe_load((SOURCE / "sim" / file).read_text())[member]
    return str(entries[name]["value"]).replace(" us", " µs")


def summary(record, group):
    return next(row for row in record["summaries"] if row["group"] == group)


def bytes_of(row_id):
    """The message size in the name of a row, such as T1-32-64MiB; None: it has none."""
    match = re.search(r"(\d+)(B|KiB|MiB|GiB)\b", row_id)
    return (
        int(match[1]) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[match[2]]
        if match
        else None
    )


def table(rows):
    """Rows of a Markdown table."""
    return "".join("| " + " | ".join(str(cell) for cell in row) + " |\n" for row in rows)


def errors_row(name, rows):
    errors = sorted(abs(row["error"]) for row in rows)
    return name, len(errors), percent(statistics.median(errors)), percent(errors[-1])


def kernel_fields(record):
    kernels, dma, collectives = (record[name]["rows"] for name in QUICK)
    products = [row for row in kernels if row["group"] == "matmul"]
    others = [row for row in kernels if row["group"] != "matmul"]
    large = [row for row in collectives if (bytes_of(row["id"]) or 0) >= 2**20]
    small = [row for row in collectives if row not in large]
    rows = [
        errors_row("`kernels`: matrix products on Trn1 and Trn2", products),
        errors_row("`kernels`: attention, norms, element-wise, third-party kernels", others),
        errors_row("`dma`: payload curves, timelines, rates", dma),
        errors_row("`intervals`: 25 instructions of Trn1", record["intervals"]["rows"]),
        errors_row("`collectives` from 1 MiB, Trn1 and Trn2, 2 to 64 ranks", large),
        errors_row("`collectives` below 1 MiB", small),
    ]
    rows += [
        errors_row(f"— {group}", [row for row in large if row["group"] == group])
        for group in sorted({row["group"] for row in large})
    ]
    without = [(name, record[name]["published_only"]) for name in QUICK]
    only = [(f"`{name}`", percent(row["median"]), percent(row["worst"])) for name, row in without]
    return {"kernels": table(rows), "published_only": table(only)}


def release_of(row_id):
    """Of the software that a published step is of."""
    run = yaml.safe_load((SOURCE / f"benchmarks/published/training/{row_id}.yaml").read_text())
    return run["software"].split("@")[1]


def step_row(row):
    groups = dict(group.split(" ", 1) for group in row["groups"])
    parameters = row["parameters"]
    large = parameters >= 1e9
    size = f"{parameters / 1e9:.3g} B" if large else f"{parameters / 1e6:.0f} M"
    return (
        row["id"],
        groups["family"],
        size,
        row["instance"],
        row["nodes"],
        f"{groups['path']} {release_of(row['id'])}",
        row["use"],
        f"{row['published_s']:.4g} s",
        f"{row['predicted_s']:.4g} s",
        signed(row["error"]),
    )


def telemetry_row(row):
    cells = [row["id"]]
    for part in ("device_s", "idle_s"):
        published, predicted = row["telemetry"][part], row["micro_batch"][part]
        cells += [f"{published:.3f} s", f"{predicted:.3f} s", signed(predicted / published - 1)]
    return tuple(cells)


def training_fields(training):
    everything = summary(training, "all")
    held_out = summary(training, "all, test rows")
    family = training["leave_one_family_out"] | {"rows": everything["rows"]}
    names = {
        "all published steps": everything,
        "the same, with the fitted numbers found without the row's model family": family,
        "rows that nothing was fitted on": held_out,
    }
    rows = [
        (name, row["rows"], percent(row["median"]), percent(row["p90"]))
        for name, row in names.items()
    ]
    steps = sorted(training["rows"], key=lambda row: (row["groups"][0], row["id"]))
    return {
        "training": table(rows),
        "steps": table(step_row(row) for row in steps),
        "telemetry": table(telemetry_row(row) for row in steps if "telemetry" in row),
        "megatron_step": number(
            "software.step_overhead", "config/calibration/megatron.yaml", "parameters"
        ),
        "stretch": number("multi_node_stretch", "configs/trn1.yaml", "network"),
        "trace_time": number("trace_time", "configs/software/nxd.yaml", "host"),
        "launch_time": number("launch_time", "configs/software/optimum-neuron.yaml", "host"),
    }


def range_row(instance, size, steps):
    ratios = [step["predicted_s"] / step["published_s"] for step in steps]
    return (
        instance,
        size.replace("<", "below "),
        len(steps),
        percent(statistics.median(abs(ratio - 1) for ratio in ratios)),
        f"{max(max(ratio, 1 / ratio) for ratio in ratios):.3f}",
    )


def range_fields(steps, judged):
    groups = {}
    for step in steps:
        groups.setdefault((step["instance"], step["size"]), []).append(step)
    rows = [range_row(*group, members) for group, members in groups.items()]
    return {
        "ranges": table([*rows, range_row("any", "any", steps)]),
        "judged": judged["steps"],
        "within": judged["within"],
        "validated": judged["validated"],
        "validated_within": judged["validated_within"],
        "median_width": f"{100 * (judged['median_factor'] - 1):.1f} %",
    }


def memory_row(row):
    published = row.get("published_gib_per_core")
    return (
        row["id"],
        "fitted" if row["published_fits"] else "out of memory",
        row["verdict"],
        f"{row['needed_gib']:.4g} GiB",
        f"{published:.4g} GiB" if published else "–",
        row["result"],
    )


def memory_fields(rows):
    def span(fits):
        sized = [row for row in rows if row.get("published_gib_per_core", 0) > 8]
        errors = [
            row["needed_gib"] / row["published_gib_per_core"] - 1
            for row in sized
            if row["published_fits"] == fits and row["id"] != UNPRINTED
        ]
        return f"{signed(min(errors))} and {signed(max(errors))}"

    return {
        "memory_rows": len(rows),
        "memory_right": sum(row["result"] == "right" for row in rows),
        "fitted": span(True),
        "refused": span(False),
        "memory": table(memory_row(row) for row in rows),
    }


def instruction_row(row, modelled):
    def starts(errors):
        return f"{errors['median_us']:.2f} / {errors['p90_us']:.2f} µs"

    return (
        f"`{row['id']}`",
        row["start_error"]["n"],
        f"{row['real_span_us']:.2f} µs",
        signed(row["error"]),
        starts(row["start_error"]),
        signed(modelled["error"]),
        starts(modelled["start_error"]),
    )


def instruction_fields(record):
    pairs = zip(record["rows"], record["modelled"], strict=True)
    return {"instructions": table(instruction_row(row, modelled) for row, modelled in pairs)}


def page():
    record = json.loads(RECORD.read_text())
    validated = yaml.safe_load(VALIDATED.read_text())
    fields = {
        **kernel_fields(record),
        **training_fields(record["training"]),
        **range_fields(validated["steps"], record["training"]["cross_validation"]),
        **memory_fields(record["memory"]["rows"]),
        **instruction_fields(record["instructions"]),
        "mechanisms": table(ablation.rows(percent, signed)),
        "fitted_numbers": table(ablation.fitted_rows()),
    }
    return NOTE + TEMPLATE.read_text().format(**fields)
