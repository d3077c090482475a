"""Commands that documents show: found, run in the order of a page, compared with their output.

A block of code ```sh is a script; a block ```console has lines `$ command`, each followed by what
it prints on stdout. A comment in the line before a block says how it is run; several are separated
by ';':
  <!-- keep 1-6,9 -->             these lines of the output are shown; … replaces the others
  <!-- exits 3 -->                the expected exit code; without it 0
  <!-- output varies: REASON -->  an example: it is not compared, and refreshed only
                                  where none is shown
  <!-- not run: REASON -->        the block is neither run nor compared
"""

import os
import pathlib
import re
import subprocess
from dataclasses import dataclass, field

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<options>[^>]*) -->\n)?```(?P<kind>sh|console)\n(?P<body>.*?)^```$", re.M | re.S
)
OPTION = re.compile(r"(keep [\d,-]+|exits \d+|output varies: .+|not run: .+)$")
WIDEST = 180
TIME_LIMIT_S = 300


class DocumentError(Exception):
    """A page that cannot be run; the text has page, line and command."""


@dataclass
class Block:
    """One block of code of a page."""

    line: int
    kind: str
    body: str
    options: dict = field(default_factory=dict)

    def steps(self):
        """(command, shown output) of a console block; of a script one step with all of it."""
        if self.kind == "sh":
            return [(self.body, "")]
        steps, continued = [], False
        for line in self.body.splitlines():
            if line.startswith("$ "):
                steps.append([line[2:], []])
            elif continued:
                steps[-1][0] += "\n" + line
            elif not steps:
                raise DocumentError(f"line {self.line}: a console block begins with '$ '")
            else:
                steps[-1][1].append(line)
                continue
            continued = line.endswith("\\")
        return [(command, "".join(line + "\n" for line in output)) for command, output in steps]


def options_of(text, line):
    options = {}
    for part in filter(None, re.split(r"; (?=keep |exits |output varies|not run)", text or "")):
        if not OPTION.match(part):
            raise DocumentError(f"line {line}: unknown option of a block: {part!r}")
        name = re.match(r"keep|exits|output varies|not run", part)[0]
        options[name] = part[len(name) :].lstrip(": ")
    return options


def is_ours(text):
    """Whether a comment before a block is one of ours, and no other comment."""
    return text is None or re.match(r"keep |exits |output varies|not run", text)


def blocks(text):
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        options = options_of(match["options"], line) if is_ours(match["options"]) else {}
        found.append((match, Block(line, match["kind"], match["body"], options)))
    return found


def selected(lines, ranges):
    """The lines of 1-based ranges such as 1-6,9; … for each gap."""
    wanted = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        wanted += range(int(first), int(last or first) + 1)
    out, before = [], 0
    for number in [n for n in wanted if n <= len(lines)]:
        if number != before + 1:
            out.append("…")
        out.append(lines[number - 1])
        before = number
    return out + (["…"] if before < len(lines) else [])


def shown(output, keep):
    """What a document shows of an output: the kept lines, each cut at WIDEST characters."""
    lines = output.rstrip("\n").split("\n") if output.strip() else []
    lines = selected(lines, keep) if keep else lines
    return "".join(
        (line if len(line) <= WIDEST else line[: WIDEST - 2] + " …").rstrip() + "\n"
        for line in lines
    )


class Workplace:
    """A folder in which a page's commands run: with examples/, benchmarks/ and `trellis`."""

    def __init__(self, folder, program, cache):
        self.folder = pathlib.Path(folder)
        program = pathlib.Path(program).resolve()
        for name in ("examples", "benchmarks"):
            os.symlink(SOURCE / name, self.folder / name)
        (self.folder / "bin").mkdir()
        os.symlink(program, self.folder / "bin/trellis")
        libraries = program.parents[1] / "lib"
        self.environment = {
            **os.environ,
            "TRELLIS_CACHE": str(cache),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(SOURCE / "device/python"),
            "TRELLIS_NEURON_LIBRARY": str(libraries / "libtrellis_neuron.so"),
            "PATH": f"{self.folder}/bin:{SOURCE}/.venv/bin:{os.environ['PATH']}",
        }

    def run(self, command, expected_code):
        """stdout. Raises DocumentError when the command ends otherwise than expected."""
        try:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise DocumentError(f"{command}: still running after {TIME_LIMIT_S} s") from None
        if done.returncode != expected_code:
            raise DocumentError(
                f"{command}: expected exit code {expected_code}, got {done.returncode}\n"
                f"{done.stdout[-500:]}{done.stderr[-1500:]}"
            )
        return done.stdout


def run_block(block, workplace):
    """The block's body with the output of now. Blocks that are not run keep theirs."""
    if "not run" in block.options:
        return block.body
    body = ""
    for command, before in block.steps():
        output = workplace.run(command, int(block.options.get("exits", 0)))
        if block.kind == "sh":
            return block.body
        example = before if "output varies" in block.options else ""
        body += f"$ {command}\n" + (example or shown(output, block.options.get("keep")))
    return body


def refreshed(text, workplace, on_block=lambda block: None):
    """The page with every output of now. `on_block` is called before each block is run."""
    out, at = "", 0
    for match, block in blocks(text):
        on_block(block)
        start, end = match.span("body")
        out += text[at:start] + run_block(block, workplace)
        at = end
    return out + text[at:]


def pages():
    """Every document whose commands are run."""
    return [
        SOURCE / "README.md",
        SOURCE / "CONTRIBUTING.md",
        *sorted((SOURCE / "docs").rglob("*.md")),
    ]
