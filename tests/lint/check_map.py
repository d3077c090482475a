"""Every folder has a line of purpose, and ARCHITECTURE.md has the map and the picture that follow
from the CMake files. Usage: check_map.py ROOT

How they are declared: architecture.py.
"""

import architecture
from source_tree import main


def check(root):
    page = root / architecture.PAGE
    if not page.exists():
        return
    yield from architecture.problems(root)
    text = page.read_text(encoding="utf-8")
    found = {block["name"]: block for block in architecture.BLOCK.finditer(text)}
    for name, write in architecture.TEXTS.items():
        if name not in found:
            yield f"{architecture.PAGE}:1: expected a block <!-- generated: {name} -->"
            continue
        old, new = found[name]["text"].splitlines(), write(root).splitlines()
        line = text.count("\n", 0, found[name].start("text")) + 1
        if old != new:
            at = next((i for i, pair in enumerate(zip(old, new)) if pair[0] != pair[1]), len(old))
            yield (
                f"{architecture.PAGE}:{line + min(at, len(old))}: the {name} is not that of the "
                f"CMake files: run scripts/refresh-outputs {architecture.PAGE}"
            )


if __name__ == "__main__":
    main(check)
