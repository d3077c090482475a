"""Holds the architecture, which is what the CMake files declare. Usage: check_layers.py ROOT

A file includes headers of its own folder and of what its library's DEPS reach; a test those that
the CMake file of its folder names, and what these reach. A library without TORCH includes no header
of LibTorch and reaches no library with it; only those whose DEPS name trellis::systemc include
SystemC's. Neither libraries nor folders form circles. Files (a source with its header, and with
NAME_impl.h) form none either, but pairs of which one include says why: `// pair: REASON`.
"""

import re
from collections import defaultdict
from functools import cache

from declarations import declared
from source_tree import LAYERS, files, lines, main

INCLUDE = re.compile(r'\s*#\s*include\s+(?:"(?P<ours>[^"]+)"|<(?P<system>[^>]+)>)')
SYSTEMC = re.compile(r"(systemc|tlm|sysc|tlm_core|tlm_utils)(\.h$|$|/)")
TORCH = re.compile(r"(torch|ATen|c10|caffe2)(/|$)")
YAML = re.compile(r"yaml-cpp/")
TOO_HEAVY = ("torch/torch.h", "torch/all.h", "torch/extension.h")
PAIR = re.compile(r"//\s*pair: \S")
TESTS = ("tests", "benchmarks", "examples")
SOURCES = (".h", ".cpp")


def includes(root, path):
    """(line number, path of a project header or None, path of another header or None)"""
    for number, line in enumerate(lines(root, path), 1):
        if match := INCLUDE.match(line):
            yield number, match["ours"], match["system"]


def top_of(path):
    return path.split("/")[0]


def folder_of(path):
    return path.rpartition("/")[0]


class Declarations:
    def __init__(self, root):
        self.libraries = declared(root, LAYERS)
        self.tests = declared(root, TESTS)
        self.by_file, self.by_folder = defaultdict(set), defaultdict(set)
        for library in self.libraries.values():
            for source in library.sources:
                self.by_file[source].add(library.name)
                self.by_folder[folder_of(source)].add(library.name)
        self.reach = cache(self.reach)

    def of(self, path):
        """The names of the libraries that a file may be of."""
        source = path.removesuffix(".h") + ".cpp"
        return self.by_file.get(path) or self.by_file.get(source) or self.by_folder[folder_of(path)]

    def reach(self, name):
        """A library's name and those of all that it depends on."""
        found, pending = set(), [name]
        while pending:
            library = pending.pop()
            if library in found:
                continue
            found.add(library)
            one = self.libraries.get(library) or self.tests.get(library)
            pending += one.deps if one else ()
        return found

    def visible(self, path):
        """The libraries whose headers the declarations let a file include."""
        names = self.of(path)
        if top_of(path) in TESTS:
            folder = folder_of(path)
            while folder and folder not in {each.folder for each in self.tests.values()}:
                folder = folder_of(folder)
            names = {each.name for each in self.tests.values() if each.folder == folder}
        return set().union(*map(self.reach, names))

    def flag(self, path, flag):
        return any(getattr(self.libraries[name], flag) for name in self.of(path))


def project_include(declarations, path, header):
    """Why a file must not include a header of the project, or None."""
    if top_of(header) in ("tests", "benchmarks"):
        return None if top_of(path) in TESTS else f"'{header}': product code includes no tests"
    if top_of(header) not in LAYERS:
        return (
            f"'{header}': expected a path from the project's root, or <…> for other people's "
            "headers"
        )
    if folder_of(header) == folder_of(path):
        return None
    owners = declarations.of(header)
    if not owners:
        return f"'{header}': no library declares it: name it in HDRS of one"
    if owners & declarations.visible(path):
        return None
    mine = ", ".join(sorted(declarations.of(path))) or f"the CMake file of {folder_of(path)}"
    return f"'{header}': of {', '.join(sorted(owners))}, which DEPS of {mine} do not reach"


def foreign_include(declarations, path, header):
    """Why a file must not include another library's header, or None."""
    is_test = top_of(path) in TESTS
    if SYSTEMC.match(header) and not is_test and not declarations.flag(path, "systemc"):
        return f"<{header}>: SystemC belongs to libraries whose DEPS name it"
    if TORCH.match(header):
        if not is_test and not declarations.flag(path, "torch"):
            return f"<{header}>: LibTorch belongs to libraries with TORCH"
        if path.endswith(".h") and header in TOO_HEAVY:
            return f"<{header}>: too heavy for a header, include the parts that are needed"
    if YAML.match(header) and top_of(path) != "base":
        return f"<{header}>: files are read through base/yaml/yaml.h"
    return None


def circles(edges):
    """The sets of nodes that reach each other, over {node: nodes} (Tarjan)."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return found


def folder_problems(root, sources):
    """One problem for each circle of folders, with an include of each of its arrows."""
    edges = {}
    for path in sources:
        for number, ours, _ in includes(root, path):
            folder, other = folder_of(path), folder_of(ours or "")
            if other and other != folder and top_of(other) in LAYERS:
                edges.setdefault(folder, {}).setdefault(other, f"{path}:{number}")
    for members in circles(edges):
        arrows = {
            (folder, other): edges[folder][other]
            for folder in members
            for other in members
            if other in edges.get(folder, {})
        }
        text = ", ".join(f"{a} → {b} ({place})" for (a, b), place in arrows.items())
        yield f"{min(arrows.values())}: folders include each other: {text}"


def unit_of(path):
    return path.rsplit(".", 1)[0].removesuffix("_impl")


def file_problems(root, sources):
    """One problem for each circle of files but pairs with a reason."""
    edges = {}
    for path in sources:
        for number, ours, _ in includes(root, path):
            if ours in sources and unit_of(ours) != unit_of(path):
                edges.setdefault(unit_of(path), {}).setdefault(unit_of(ours), []).append(
                    (path, number)
                )
    for members in circles(edges):
        arrows = [
            (one, other, *place)
            for one in members
            for other in members
            for place in edges[one].get(other, ())
        ]
        reasons = [1 for _, _, path, number in arrows if PAIR.search(lines(root, path)[number - 1])]
        if len(members) == 2 and reasons:
            continue
        path, number = arrows[0][2:]
        text = ", ".join(f"{one} → {other}" for one, other, *_ in arrows[:8])
        yield (
            f"{path}:{number}: {len(members)} files include each other: {text}: move what both "
            "need into a header of its own; a pair may stay with `// pair: REASON` behind one of "
            "its includes"
        )


def declaration_problems(declarations, sources):
    libraries = declarations.libraries
    for path in sources:
        if path.endswith(".cpp") and not declarations.by_file[path]:
            yield f"{path}:1: no library declares it: name it in SRCS of one"
    for members in circles({name: each.deps for name, each in libraries.items()}):
        where = libraries[members[0]].folder
        yield f"{where}/CMakeLists.txt:1: libraries depend on each other: {', '.join(members)}"
    for name, library in libraries.items():
        torch = {o for o in declarations.reach(name) if o in libraries and libraries[o].torch}
        if torch and library.sources and not library.torch:
            yield (
                f"{library.folder}/CMakeLists.txt:1: {name} has no TORCH and reaches "
                f"{', '.join(sorted(torch))}, which have"
            )


def check(root):
    declarations = Declarations(root)
    sources = files(root, SOURCES)
    product = [path for path in sources if top_of(path) in LAYERS]
    known = set(sources)
    yield from folder_problems(root, product)
    yield from file_problems(root, set(product))
    yield from declaration_problems(declarations, product)

    @cache
    def reached(path, library):
        """Whether a file includes the library, itself or through project headers."""
        pending, seen = [path], {path}
        while pending:
            for _, ours, system in includes(root, pending.pop()):
                if library.match(ours or system):
                    return True
                if ours in known and ours not in seen:
                    seen.add(ours)
                    pending.append(ours)
        return False

    for path in sources:
        for number, ours, system in includes(root, path):
            # A library's header in quotes is still that library's header.
            foreign = system or (ours if top_of(ours) not in LAYERS else None)
            problem = (foreign and foreign_include(declarations, path, foreign)) or (
                ours and project_include(declarations, path, ours)
            )
            if problem:
                yield f"{path}:{number}: {problem}"
        if reached(path, SYSTEMC) and reached(path, TORCH):
            yield (
                f"{path}:1: SystemC and LibTorch meet in this file, through the headers that it "
                "includes"
            )


if __name__ == "__main__":
    main(check)
