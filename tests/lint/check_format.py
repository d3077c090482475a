"""Holds the formatters' output and the linters' silence. Usage: check_format.py ROOT

clang-format and ruff are those of .venv (scripts/setup --tests), shellcheck is the system's.
"""

import subprocess
import sys
from pathlib import Path

from source_tree import files, lines, main

PROGRAMS = Path(sys.executable).parent
SHELLS = ("#!/usr/bin/env bash", "#!/bin/sh", "#!/bin/bash", "# shellcheck shell=")


def run(root, program, *arguments):
    """Lines of what `program` complains about; none when it ends with 0."""
    done = subprocess.run([program, *arguments], cwd=root, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines() if done.returncode != 0 else []


def shell_scripts(root):
    """The files of scripts/ and .ci/ that are shell scripts by their first line."""
    for path in files(root, ("",), ["scripts", ".ci"]):
        if lines(root, path)[:1] and lines(root, path)[0].startswith(SHELLS):
            yield path


def check(root):
    sources = files(root, (".h", ".cpp"))
    for begin in range(0, len(sources), 200):
        some = sources[begin : begin + 200]
        yield from run(root, PROGRAMS / "clang-format", "--dry-run", "-Werror", *some)
    yield from run(root, PROGRAMS / "ruff", "check", "--output-format=concise", "--quiet", ".")
    yield from run(root, PROGRAMS / "ruff", "format", "--check", "--quiet", "--diff", ".")
    scripts = list(shell_scripts(root))
    if scripts:
        yield from run(root, "shellcheck", "-x", "--format=gcc", *scripts)


if __name__ == "__main__":
    main(check)
