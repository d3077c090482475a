"""pytest: the fixture `trellis_gate` fails a test whose simulated step takes longer, or needs more
memory, than its baseline.

    def test_my_model(trellis_gate):
        with trellis_neuron.simulate("trn2.48xlarge") as run:
            train()
        trellis_gate(run)

`trellis_kernel_gate` does the same for an NKI kernel's time on one core, and fails for wrong
numbers and for mistakes that `trellis kernel run` names:

    def test_my_kernel(trellis_kernel_gate):
        trellis_kernel_gate(softmax, x, reference=numpy_softmax, error=1e-5)

Baselines are files in trellis_baselines/ next to the test; `--trellis-update-baselines` writes
them."""

import json
import pathlib
import re
from typing import Any

import pytest

FOLDER, SCHEMA = "trellis_baselines", "trellis.pytest_baseline/1"
KERNEL_SCHEMA = "trellis.pytest_kernel/1"
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


def _read(file: pathlib.Path, schema: str = SCHEMA) -> dict[str, Any]:
    try:
        baseline = json.loads(file.read_text())
        if baseline["schema"] == schema:
            return baseline
    except (ValueError, KeyError, TypeError):
        pass
    raise pytest.fail.Exception(
        f"{file}: expected a baseline of schema {schema}; {OPTION} writes a new one"
    )


def _baseline(request, now: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The test's baseline; None: the one of now has been written."""
    parts = [request.path.stem, *request.node.nodeid.split("::")[1:], *([name] if name else [])]
    file_name = re.sub(r"[^\w.-]+", "_", "-".join(parts)) + ".json"
    file = request.path.parent / FOLDER / file_name
    if request.config.getoption(OPTION):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(now, indent=1) + "\n")
        return None
    if not file.exists():
        pytest.fail(f"{file} does not exist: {OPTION} writes it; commit it", pytrace=False)
    return _read(file, now["schema"])


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
        now = _measured(run)
        before = _baseline(request, now, name)
        tolerances = {"step_time_ms": step_time, "peak_memory_bytes": memory}
        if before is not None and (problems := _problems(now, before, tolerances)):
            text = "\n".join(problems)
            pytest.fail(f"{text}\nif that is meant: {OPTION}", pytrace=False)

    return gate


def _kernel_problems(report: dict, error: float | None) -> list[str]:
    """What is wrong with a kernel whatever its time is."""
    found = [f"{h['line']}: {h['text']}" for h in report["refusals"] + report["hazards"]]
    for out in report["outputs"]:
        allowed = out["tolerance"] if error is None else error
        if not out["relative_error"] <= allowed:
            found.append(
                f"{out['name']}: relative error {out['relative_error']:.3g}, at most {allowed:.3g} "
                f"allowed; largest at {out['element']}: {out['got']:.9g}, expected "
                f"{out['expected']:.9g}"
            )
    return found


@pytest.fixture
def trellis_kernel_gate(request):
    """gate(kernel, *inputs, reference=function, time=0.02, error=None): `time` is a share of the
    baseline, `error` the relative error of an output (None: by its dtype)."""

    def gate(
        kernel, *inputs, reference=None, time: float = 0.02, error: float | None = None,
        instance: str = "trn2.48xlarge", name: str = "", **options,
    ) -> dict[str, Any]:  # fmt: skip
        from .nki.program import execute

        expected = [] if reference is None else reference(*inputs)
        expected = expected if isinstance(expected, (tuple, list)) else [expected]
        _, report = execute(kernel.trace(inputs, options), instance, expected=expected)
        if problems := _kernel_problems(report, error):
            pytest.fail("\n".join(problems), pytrace=False)
        now = {
            "schema": KERNEL_SCHEMA,
            "instance": instance,
            "nodes": 1,
            "device_time_us": report["device_time_us"],
        }
        before = _baseline(request, now, name)
        if before is not None and (problems := _problems(now, before, {"device_time_us": time})):
            text = "\n".join([*problems, *(f"advice: {a}" for a in report["advice"])])
            pytest.fail(f"{text}\nif that is meant: {OPTION}", pytrace=False)
        return report

    return gate
