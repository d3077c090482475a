"""Figures of accuracy are in docs/accuracy.md only. Usage: check_figures.py ROOT

Reported: a percentage next to "median", "p90", "90th percentile", "worst" or "error", in any other
document and in the sources of help texts (cli/*.cpp). Left out: blocks of code, of which a test
compares outputs with the program, and the changelog, whose figures are of its time.
"""

import re

from source_tree import files, lines, main

HOME = "docs/accuracy.md"
PERCENT = r"[+\-−]?\d+(?:\.\d+)?\s?%"
WORD = r"(?<!-)(?:median|p90|90th percentile|worst|errors?|off by)"
FIGURE = re.compile(
    rf"(?<![-\w]){WORD}\b[^.;|]{{0,60}}?{PERCENT}|{PERCENT}[^.;|]{{0,25}}?{WORD}\b", re.IGNORECASE
)
TABLE_WORD = re.compile(r"\|\s*(?:median|p90|90th percentile|worst)\b", re.IGNORECASE)
# Not accuracy of predictions: limits of the program, and what other things differ by.
OTHER = re.compile(
    r"expected failures|failures? \(|limit|tolerance|--max-|share between|wider", re.IGNORECASE
)


def figures(content):
    """(line number, text) of each figure outside of blocks of code."""
    in_code, in_table = False, False
    for number, line in enumerate(content, 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if in_code:
            continue
        row = line.startswith("|")
        in_table = row and (in_table or bool(TABLE_WORD.search(line)))
        found = FIGURE.search(line) or (in_table and re.search(PERCENT, line))
        if found and not OTHER.search(line):
            yield number, found[0].strip()


def check(root):
    documents = [
        name
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
        if (root / name).exists()
    ]
    documents += [path for path in files(root, (".md",)) if path != HOME]
    documents += [path for path in files(root, (".cpp",), ["cli"])]
    for document in documents:
        for number, text in figures(lines(root, document)):
            yield f"{document}:{number}: a figure of accuracy belongs to {HOME} only: {text!r}"


if __name__ == "__main__":
    main(check)
