"""pytest: the fixture `trellis_gate` fails a test whose simulated step takes longer, or needs more
memory, than its baseline.

    def test_my_model(trellis_gate):
        with trellis_neuron.simulate("trn2.48xlarge") as run:
            train()
        trellis_gate(run)

Baselines are files in trellis_baselines/ next to the test; `--trellis-update-baselines` writes
them."""

import json
import pathlib
import re
from typing import Any

import pytest

FOLDER, SCHEMA = "trellis_baselines", "trellis.pytest_baseline/1"
OPTION = "--trellis-update-baselines"


def pytest_addoption(parser):
    group = parser.getgroup("trellis", "simulated Trainium")
    group.addoption(
        OPTION,
        action="store_true",
        help="write the step times and memory of now as the baselines of trellis_gate",
    )


def _measured(run) -> dict[str, Any]:
    report = run.report()
    return {
        "schema": SCHEMA,
        "instance": report.session["instance"],
        "nodes": report.session["nodes"],
        "step_time_ms": report.step_times_ms()[-1],
        "peak_memory_bytes": max(report.peak_memory_bytes().values(), default=0),
    }


def _read(file: pathlib.Path) -> dict[str, Any]:
    try:
        baseline = json.loads(file.read_text())
        if baseline["schema"] == SCHEMA:
            return baseline
    except (ValueError, KeyError, TypeError):
        pass
    raise pytest.fail.Exception(
        f"{file}: expected a baseline of schema {SCHEMA}; {OPTION} writes a new one"
    )


def _problems(now: dict, before: dict, tolerances: dict[str, float]) -> list[str]:
    if (machine := (now["instance"], now["nodes"])) != (before["instance"], before["nodes"]):
        return [
            f"the machine is another one: expected {before['nodes']} × {before['instance']}, got "
            f"{machine[1]} × {machine[0]}"
        ]
    return [
        f"{key}: {now[key]:,.6g}, the baseline is {before[key]:,.6g}: "
        f"{100 * (now[key] / before[key] - 1):+.2f} %, at most {100 * tolerance:+.2f} % allowed"
        for key, tolerance in tolerances.items()
        if now[key] > before[key] * (1 + tolerance)
    ]


@pytest.fixture
def trellis_gate(request):
    """gate(run, step_time=0.02, memory=0.02): tolerances are shares of the baseline. A second gate
    in the same test needs a `name`."""

    def gate(run, *, step_time: float = 0.02, memory: float = 0.02, name: str = "") -> None:
        parts = [request.path.stem, *request.node.nodeid.split("::")[1:], *([name] if name else [])]
        file_name = re.sub(r"[^\w.-]+", "_", "-".join(parts)) + ".json"
        file = request.path.parent / FOLDER / file_name
        now = _measured(run)
        if request.config.getoption(OPTION):
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(now, indent=1) + "\n")
            return
        if not file.exists():
            pytest.fail(f"{file} does not exist: {OPTION} writes it; commit it", pytrace=False)
        tolerances = {"step_time_ms": step_time, "peak_memory_bytes": memory}
        if problems := _problems(now, _read(file), tolerances):
            text = "\n".join(problems)
            pytest.fail(f"{text}\nif that is meant: {OPTION}", pytrace=False)

    return gate
