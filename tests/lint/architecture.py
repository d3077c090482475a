"""ARCHITECTURE.md's map and its picture, from what the CMake files declare.

The map: `trellis_folder(FOLDER "PURPOSE")`, FOLDER relative to the CMake file, "." for its own. The
picture: the DEPS of the libraries of each top folder. scripts/refresh-outputs writes both between
their marks, and check_map.py compares them.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from declarations import commands, declared
from source_tree import FOLDERS, LAYERS, NOT_OURS

PAGE = "ARCHITECTURE.md"
BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\w+) -->\n\n```text\n)(?P<text>.*?)(?P<end>```\n)", re.S
)
PURPOSE_AT = 24


@dataclass
class Declared:
    """A line of purpose, and the CMake file that has it."""

    folder: str
    purpose: str
    file: str


def declared_folders(root, folder=""):
    """In the order in which CMake reads them."""
    file = f"{folder}/CMakeLists.txt".lstrip("/")
    if not (root / file).exists():
        return
    for name, words in commands((root / file).read_text(encoding="utf-8")):
        if name == "trellis_folder":
            path = folder if words[0] == "." else f"{folder}/{words[0]}".lstrip("/")
            yield Declared(path, " ".join(words[1:]), file)
        elif name == "add_subdirectory":
            yield from declared_folders(root, f"{folder}/{words[0]}".lstrip("/"))


def tree(root):
    """Folders that hold files: of the product at every depth, the others by name only."""
    for top in FOLDERS:
        if (root / top).is_dir():
            yield top
        if top not in LAYERS:
            continue
        for folder in sorted(p for p in (root / top).rglob("*") if p.is_dir()):
            path = folder.relative_to(root)
            if not NOT_OURS & set(path.parts) and any(leaf.is_file() for leaf in folder.rglob("*")):
                yield str(path)


def problems(root):
    """What keeps the map from having one line for each folder."""
    files, there = {}, list(tree(root))
    for one in declared_folders(root):
        if one.folder not in there:
            yield f"{one.file}:1: trellis_folder: there is no folder {one.folder}/"
        if one.folder in files:
            yield f"{one.file}:1: trellis_folder: {files[one.folder]} has a line for {one.folder}/"
        files[one.folder] = one.file
    for folder in there:
        if folder not in files:
            yield (
                f"{folder}:1: the folder has no line of purpose: "
                f'trellis_folder({folder.rpartition("/")[2]} "…") in its CMake file'
            )


def map_text(root):
    """A folder a line, two blanks of indentation a level."""
    purposes, below = {}, defaultdict(list)
    for one in declared_folders(root):
        purposes[one.folder] = one.purpose
        below[one.folder.rpartition("/")[0]].append(one.folder)

    def written(parent, depth):
        for folder in below[parent]:
            name = "  " * depth + folder.rpartition("/")[2] + "/"
            yield f"{name:{PURPOSE_AT - 1}} {purposes[folder]}".rstrip() + "\n"
            yield from written(folder, depth + 1)

    below[""].sort(key=lambda top: FOLDERS.index(top) if top in FOLDERS else len(FOLDERS))
    return "".join(written("", 0))


def needs(root):
    """{top folder: what its libraries name in DEPS}: top folders, LibTorch and SystemC."""
    libraries = declared(root, LAYERS)
    top = {name: library.folder.split("/")[0] for name, library in libraries.items()}
    found = {layer: set() for layer in LAYERS if layer in top.values()}
    for name, library in libraries.items():
        layer = top[name]
        found[layer] |= {top[other] for other in library.deps if other in top} - {layer}
        found[layer] |= {"LibTorch"} if library.torch else set()
        found[layer] |= {"SystemC"} if library.systemc else set()
    return found


def reached(found, layer):
    """The top folders that one depends on, through others too."""
    result, pending = set(), [layer]
    while pending:
        new = (found[pending.pop()] & found.keys()) - result
        result |= new
        pending += new
    return result


def picture_text(root):
    """A row has a mark for each column that its folder needs; folders follow what they need."""
    found = needs(root)
    rows = sorted(found, key=lambda layer: len(reached(found, layer)))
    columns = [*rows[:-1], "LibTorch", "SystemC"]
    width = max(map(len, rows))
    out = " " * width + "  " + "  ".join(columns) + "\n"
    for layer in rows:
        marks = (("■" if name in found[layer] else "·").center(len(name)) for name in columns)
        out += f"{layer:{width}}  {'  '.join(marks)}".rstrip() + "\n"
    return out


TEXTS = {"map": map_text, "picture": picture_text}


def refreshed(root, text):
    """The page with the map and the picture of now."""
    return BLOCK.sub(lambda m: m["begin"] + TEXTS[m["name"]](root) + m["end"], text)
