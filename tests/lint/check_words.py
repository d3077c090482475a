"""Holds the vocabulary of CONTRIBUTING.md, "Words". Usage: check_words.py ROOT

Reads the table there, and looks for its second column in code (identifiers, comments, texts) and
Markdown. Identifiers are read as words: `kTurnedRows` and `turned_rows` are both "turned rows". A
phrase may go on in the next line.
"""

import re

from source_tree import files, lines, main

TABLE = "CONTRIBUTING.md"
SUFFIXES = (".h", ".cpp", ".py", ".cmake", "CMakeLists.txt", ".sh", ".js", ".css", ".md")
CAPITAL_INSIDE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
BEGIN_OF_LINE = re.compile(r"^[\s/#*\"'|]+")


def table(root):
    """{phrase that is not used: what to write}, from rows `| write | not |`."""
    rows, inside = {}, False
    for line in lines(root, TABLE):
        if line.startswith("## "):
            inside = line == "## Words"
        elif inside and line.startswith("| ") and not line.startswith("| write "):
            write, instead_of = (cell.strip() for cell in line.strip("|").split("|"))
            rows |= {phrase.strip(): write for phrase in instead_of.split(",")}
    return rows


def words_of(line):
    return CAPITAL_INSIDE.sub(" ", line).replace("_", " ").lower()


def check(root):
    rows = table(root)
    if not rows:
        yield f"{TABLE}:1: expected a section 'Words' with a table | write | not |"
        return
    phrases = sorted(rows, key=len, reverse=True)
    pattern = re.compile(
        r"\b(" + "|".join(re.escape(p).replace(r"\ ", r"\s+") for p in phrases) + r")\b"
    )
    outside = [path.name for path in root.iterdir() if path.suffix == ".md" and path.name != TABLE]
    paths = set(files(root, SUFFIXES)) | set(files(root, ("",), ["scripts"]))
    for path in sorted(p for p in paths | set(outside) if not p.startswith("tests/lint/")):
        content = lines(root, path)
        for number, line in enumerate(content, 1):
            words = words_of(line).rstrip(' "')
            next_words = (
                words_of(BEGIN_OF_LINE.sub("", content[number])) if number < len(content) else ""
            )
            for found in pattern.finditer(f"{words} {next_words}"):
                if found.start() < len(words):
                    phrase = " ".join(found.group(1).split())
                    yield f"{path}:{number}: '{phrase}': write '{rows[phrase]}'"


if __name__ == "__main__":
    main(check)
