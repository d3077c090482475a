"""Holds one definition per name. Usage: check_names.py ROOT

Two types of one name in one namespace are one type to the linker: which constructor or destructor
it keeps is chance.
"""

import re

from source_tree import LAYERS, files, lines, main

NAMESPACE = re.compile(r"namespace (trellis[\w:]*) \{")
TYPE = re.compile(r"(?:struct|class|enum class) (\w+)(?: final)?(?: :[^;{]*)? ?\{")


def types(content):
    """(namespace, name, line number) of each type outside anonymous namespaces."""
    namespace, anonymous = None, False
    for number, line in enumerate(content, 1):
        if match := NAMESPACE.match(line):
            namespace = match[1]
        if line == "namespace {":
            anonymous = True
        if line == "}  // namespace":
            anonymous = False
        if namespace and not anonymous and (match := TYPE.match(line)):
            yield namespace, match[1], number


def check(root):
    first = {}
    for path in files(root, (".h", ".cpp"), LAYERS):
        for namespace, name, number in types(lines(root, path)):
            place = first.setdefault((namespace, name), f"{path}:{number}")
            if place != f"{path}:{number}":
                yield f"{path}:{number}: {namespace}::{name} is defined in {place} too: rename one"


if __name__ == "__main__":
    main(check)
