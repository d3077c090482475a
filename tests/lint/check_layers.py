"""Holds the architecture: which folder may include what. Usage: check_layers.py ROOT

  base ← traces ← sim ← device ← runtime ← trainer ← cli      each may include itself and what is
  left of it

analysis/ reads configurations and reports without LibTorch: it may include the plain rooms of the
trainer (PLAIN_TRAINER), and of the trainer only trainer/app includes it. Rooms, the folders that
hold sources, form no cycles.
"""

import re
from functools import cache

from source_tree import LAYERS, files, lines, main

INCLUDE = re.compile(r'\s*#\s*include\s+(?:"(?P<ours>[^"]+)"|<(?P<system>[^>]+)>)')
SYSTEMC = re.compile(r"(systemc|tlm|sysc|tlm_core|tlm_utils)(\.h$|$|/)")
TORCH = re.compile(r"(torch|ATen|c10|caffe2)(/|$)")
YAML = re.compile(r"yaml-cpp/")

# Without SystemC's modules: for the folders above sim.
PLAIN_SIM = (
    "sim/isa/",
    "sim/config/",
    "sim/collectives/",
    "sim/describe/",
    "sim/job/",
    "sim/profile/",
    "sim/storage/",
    "sim/sim.h",
)
# Without LibTorch: for analysis and the program's verbs.
PLAIN_DEVICE = ("device/compiler/", "device/kernels/")
PLAIN_TRAINER = ("trainer/config/", "trainer/schedule/", "trainer/utils/", "trainer/data/")
SYSTEMC_ROOM = "sim/systemc/"
WITH_TORCH = (
    "device/aten/",
    "device/torch_device/",
    "runtime/",
    "trainer/",
    "tests/",
    "benchmarks/",
    "examples/",
)
SOURCES = (".h", ".cpp")


def includes(root, path):
    """(line number, path of a project header or None, path of another header or None)"""
    for number, line in enumerate(lines(root, path), 1):
        if match := INCLUDE.match(line):
            yield number, match["ours"], match["system"]


def layer_of(path):
    """The layer whose rules hold for a file: tests/sim/… and benchmarks/sim/… may include what sim
    may."""
    parts = path.split("/")
    name = parts[1] if parts[0] in ("tests", "benchmarks") else parts[0]
    return name if name in LAYERS else None


def is_test(path):
    return path.startswith(("tests/", "benchmarks/"))


def project_include(path, header):
    """Why a file must not include a header of the project, or None."""
    target = header.split("/")[0]
    if target in ("tests", "benchmarks"):
        return None if is_test(path) else f"'{header}': product code includes no tests"
    if target not in LAYERS:
        return (
            f"'{header}': expected a path from the project's root, or <…> for other "
            "people's "
            "headers"
        )
    layer = layer_of(path)
    if layer is None:
        return None
    if target == "analysis" and layer == "trainer":
        if is_test(path) or path.startswith("trainer/app/"):
            return None
        return f"'{header}': of the trainer only trainer/app includes analysis"
    if layer == "analysis" and target == "trainer":
        if header.startswith(PLAIN_TRAINER):
            return None
        return (
            f"'{header}': analysis includes only plain rooms of the trainer: "
            f"{', '.join(PLAIN_TRAINER)}"
        )
    if LAYERS.index(target) > LAYERS.index(layer):
        return f"'{header}': {layer} must not include {target}: arrows go {' ← '.join(LAYERS)}"
    if is_test(path):
        return None
    if target == "sim" and layer != "sim" and not header.startswith(PLAIN_SIM):
        return (
            f"'{header}': outside sim/ only its plain headers may be included: "
            f"{', '.join(PLAIN_SIM)}"
        )
    if target == "device" and layer in ("analysis", "cli") and header.startswith(PLAIN_DEVICE):
        return None
    if target == "device" and layer != "device" and header != "device/plugin.h":
        return f"'{header}': {layer} knows the device by device/plugin.h only"
    return None


def foreign_include(path, header):
    """Why a file must not include another library's header, or None."""
    if SYSTEMC.match(header):
        if not path.startswith(SYSTEMC_ROOM) and not path.startswith(
            ("tests/sim/", "benchmarks/sim/")
        ):
            return f"<{header}>: SystemC belongs to {SYSTEMC_ROOM}"
    if TORCH.match(header):
        if not path.startswith(WITH_TORCH):
            return (
                f"<{header}>: LibTorch belongs to device/aten, device/torch_device, runtime and "
                "trainer"
            )
        if path.endswith(".h") and header in ("torch/torch.h", "torch/all.h", "torch/extension.h"):
            return f"<{header}>: too heavy for a header, include the parts that are needed"
    if YAML.match(header) and layer_of(path) != "base":
        return f"<{header}>: files are read through base/yaml.h"
    return None


def cycles(edges):
    """The sets of rooms that include each other, over {room: {room: example}} (Tarjan)."""
    order, low, stack, found = {}, {}, [], []

    def visit(room):
        order[room] = low[room] = len(order)
        stack.append(room)
        for other in sorted(edges.get(room, {})):
            if other not in order:
                visit(other)
            if other in stack:
                low[room] = min(low[room], low[other])
        if low[room] == order[room]:
            members = stack[stack.index(room) :]
            del stack[stack.index(room) :]
            if len(members) > 1:
                found.append(sorted(members))

    for room in sorted(edges):
        if room not in order:
            visit(room)
    return found


def room_problems(root, sources):
    """One problem for each cycle of rooms, with an include of each of its arrows."""
    edges = {}
    for path in sources:
        if is_test(path) or layer_of(path) is None:
            continue
        for number, ours, _ in includes(root, path):
            room, other = path.rpartition("/")[0], (ours or "").rpartition("/")[0]
            if other and other != room and other.split("/")[0] in LAYERS:
                edges.setdefault(room, {}).setdefault(other, f"{path}:{number}")
    for members in cycles(edges):
        arrows = [
            f"{room} → {other} ({edges[room][other]})"
            for room in members
            for other in members
            if other in edges.get(room, {})
        ]
        first = min(
            edges[room][other]
            for room in members
            for other in members
            if other in edges.get(room, {})
        )
        yield f"{first}: rooms include each other: {', '.join(arrows)}"


def check(root):
    sources = files(root, SOURCES)
    known = set(sources)
    yield from room_problems(root, sources)

    @cache
    def reached(path, library):
        """Whether a file includes the library, itself or through project headers."""
        pending, seen = [path], {path}
        while pending:
            for _, ours, system in includes(root, pending.pop()):
                if library.match(ours or system):
                    return True
                if ours in known and ours not in seen:
                    seen.add(ours)
                    pending.append(ours)
        return False

    for path in sources:
        for number, ours, system in includes(root, path):
            # A library's header in quotes is still that library's header.
            foreign = system or (ours if ours.split("/")[0] not in LAYERS else None)
            problem = (foreign and foreign_include(path, foreign)) or (
                ours and project_include(path, ours)
            )
            if problem:
                yield f"{path}:{number}: {problem}"
        if reached(path, SYSTEMC) and reached(path, TORCH):
            yield (
                f"{path}:1: SystemC and LibTorch meet in this file, through the headers that "
                "it "
                "includes"
            )


if __name__ == "__main__":
    main(check)
