"""What every check shares: the files of the tree, and how a check reports."""

import os
import sys
from pathlib import Path

LAYERS = [
    "base",
    "traces",
    "sim",
    "device",
    "runtime",
    "trainer",
    "analysis",
    "cli",
]  # arrows go from right to left
FOLDERS = LAYERS + ["tests", "benchmarks", "cmake", "scripts", "examples", "docs"]
NOT_OURS = {"__pycache__", "build", ".venv", "golden"}


def files(root, suffixes, folders=FOLDERS):
    """Paths relative to the root, sorted, of files with one of the suffixes."""
    found = []
    for folder in folders:
        for directory, names, leaves in os.walk(Path(root) / folder):
            names[:] = sorted(n for n in names if n not in NOT_OURS)
            found += [
                str((Path(directory) / leaf).relative_to(root))
                for leaf in leaves
                if leaf.endswith(tuple(suffixes))
            ]
    return sorted(found)


def lines(root, path):
    return (Path(root) / path).read_text(encoding="utf-8").splitlines()


def main(check):
    """Runs check(root), which yields 'file:line: text', and exits with 1 when there is any."""
    problems = list(check(Path(sys.argv[1])))
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    sys.exit(1 if problems else 0)
