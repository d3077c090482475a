"""The map in ARCHITECTURE.md lists the folders of the tree, and no others. Usage: check_map.py ROOT

The map is the code block below "## Map": one folder a line, two blanks of indentation a level.
Folders of the product are listed at every depth,
the others (tests, docs, …) by name only.
"""

import re

from source_tree import FOLDERS, LAYERS, NOT_OURS, lines, main

MAP = "ARCHITECTURE.md"
ENTRY = re.compile(r"^(?P<indent> *)(?P<name>[\w.]+)/(?:\s|$)")


def mapped(content):
    """(line number, path) of each line of the map."""
    inside, path = False, []
    for number, line in enumerate(content, 1):
        if line.startswith("## "):
            inside = line == "## Map"
        if not inside or not (entry := ENTRY.match(line)):
            continue
        depth = len(entry["indent"]) // 2
        path = path[:depth] + [entry["name"]]
        yield number, "/".join(path)


def tree(root):
    """Folders that hold files."""
    for top in FOLDERS:
        if (root / top).is_dir():
            yield top
        if top not in LAYERS:
            continue
        for folder in sorted(p for p in (root / top).rglob("*") if p.is_dir()):
            path = folder.relative_to(root)
            if not NOT_OURS & set(path.parts) and any(leaf.is_file() for leaf in folder.rglob("*")):
                yield str(path)


def check(root):
    if not (root / MAP).exists():
        return
    listed = list(mapped(lines(root, MAP)))
    there = set(tree(root))
    for number, path in listed:
        if path not in there:
            yield f"{MAP}:{number}: there is no folder {path}/"
    for path in sorted(there - {path for _, path in listed}):
        yield f"{MAP}:1: the map lacks {path}/"


if __name__ == "__main__":
    main(check)
