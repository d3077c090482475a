"""Holds small habits. Usage: check_texts.py ROOT

- headers start with #pragma once (C headers may use a guard) and have no `using namespace`;
- nothing is left to do later, and no file knows the machine that it was written on;
- no merge is half done.
"""

import re

from source_tree import files, lines, main

LATER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE = re.compile(r"(?<![\w.$}/])/(home|root|work|Users)/\w")
CONFLICT = re.compile(r"^(<{7}|>{7}) ")
USING = re.compile(r"\s*using\s+namespace\b")


def header_problems(path, content):
    if not any(line == "#pragma once" or line.startswith("#ifndef ") for line in content):
        yield f"{path}:1: a header starts with #pragma once"
    for number, line in enumerate(content, 1):
        if USING.match(line):
            yield f"{path}:{number}: no 'using namespace' in a header"


def check(root):
    for path in files(
        root, (".h", ".cpp", ".py", ".cmake", "CMakeLists.txt", ".yaml", ".md", ".sh")
    ):
        content = lines(root, path)
        if path.endswith(".h"):
            yield from header_problems(path, content)
        for number, line in enumerate(content, 1):
            if LATER.search(line):
                yield f"{path}:{number}: do it now or leave it out: {line.strip()}"
            if CONFLICT.match(line):
                yield f"{path}:{number}: a conflict of a merge is not resolved"
            if MACHINE.search(line):
                yield f"{path}:{number}: a path of one machine: {line.strip()}"


if __name__ == "__main__":
    main(check)
