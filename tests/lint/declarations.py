"""The libraries that the CMake files declare: their sources, what they depend on, and whether they
are compiled against LibTorch or SystemC."""

import fnmatch
import re
from dataclasses import dataclass, field

from source_tree import files

WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s()"]+)')
COMMAND = re.compile(r"^\s*([a-z_]+)\s*\(", re.M)
OPTIONS = ("TORCH", "OBJECT", "SEPARATE", "COLD", "SHARED", "STATIC", "INTERFACE")
LISTS = ("SRCS", "HDRS", "DEPS", "ROOM")


@dataclass
class Library:
    name: str
    folder: str
    sources: set[str] = field(default_factory=set)
    deps: set[str] = field(default_factory=set)
    torch: bool = False
    systemc: bool = False


def commands(text):
    """(name, words) of each command, in order; comments are left out."""
    text = re.sub(r"#[^\n]*", "", text)
    for match in COMMAND.finditer(text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield match[1], [a or b for a, b in WORD.findall(text[match.end() : at - 1])]


class Folder:
    """Reads the CMake file of one folder."""

    def __init__(self, root, folder, known, libraries):
        self.folder, self.known, self.libraries = folder, known, libraries
        self.variables = {}
        text = (root / folder / "CMakeLists.txt").read_text()
        for name, words in commands(text):
            handler = getattr(self, f"on_{name}", None)
            if handler is not None:
                handler(self.expanded(words))

    def expanded(self, words):
        result = []
        for word in words:
            whole = re.fullmatch(r"\$\{(\w+)\}", word)
            if whole and whole[1] in self.variables:
                result += self.variables[whole[1]]
            else:
                result.append(word.replace("${CMAKE_CURRENT_SOURCE_DIR}/", ""))
        return result

    def path(self, word):
        return f"{self.folder}/{word}".replace("/./", "/")

    def matching(self, pattern, below):
        path = self.path(pattern)
        depth = path.count("/")
        return [
            file[len(self.folder) + 1 :]
            for file in self.known
            if fnmatch.fnmatch(file, path if not below else f"{self.folder}/*")
            and file.endswith(".cpp")
            and (below or file.count("/") == depth)
        ]

    def on_set(self, words):
        self.variables[words[0]] = words[1:]

    def on_file(self, words):
        if words[0] not in ("GLOB", "GLOB_RECURSE"):
            return
        patterns = [word for word in words[2:] if word != "CONFIGURE_DEPENDS"]
        found = {f for p in patterns for f in self.matching(p, words[0] == "GLOB_RECURSE")}
        self.variables[words[1]] = sorted(found)

    def on_list(self, words):
        kind, name, values = words[0], words[1], words[2:]
        current = self.variables.get(name, [])
        if kind == "FILTER" and values[:2] == ["EXCLUDE", "REGEX"]:
            pattern = re.compile(values[2])
            kept = [v for v in current if not pattern.search(f"/{self.path(v)}")]
            self.variables[name] = kept
        if kind == "REMOVE_ITEM":
            self.variables[name] = [v for v in current if v not in values]

    def library(self, name):
        return self.libraries.setdefault(name, Library(name, self.folder))

    def add(self, name, words):
        library, lists, current = self.library(name), {key: [] for key in LISTS}, "SRCS"
        for word in words:
            if word in LISTS:
                current = word
            elif word not in OPTIONS:
                lists[current].append(word)
            elif word == "TORCH":
                library.torch = True
        for room in lists["ROOM"]:
            lists["SRCS"] += self.matching("*.cpp" if room == "." else f"{room}/*.cpp", False)
        own = lists["SRCS"] + lists["HDRS"]
        library.sources |= {self.path(s) for s in own if not s.startswith("$")}
        self.depend(library, lists["DEPS"])

    @staticmethod
    def depend(library, words):
        library.deps |= {
            word.removeprefix("trellis::").removeprefix("trellis_")
            for word in words
            if word.startswith(("trellis::", "trellis_"))
        }
        library.systemc |= "systemc" in library.deps

    def on_trellis_library(self, words):
        self.add(words[0], words[1:])

    def on_add_library(self, words):
        self.add(words[0].removeprefix("trellis_"), words[1:])

    def on_add_executable(self, words):
        self.add(words[0], words[1:])

    def on_trellis_tests(self, words):
        """Only the folder and the DEPS of a test's program are needed."""
        self.depend(self.library(f"{self.folder}:{words[0]}"), words[1:])

    on_trellis_test = on_trellis_test_program = on_trellis_benchmark = on_trellis_tests

    def on_target_link_libraries(self, words):
        self.depend(self.library(words[0].removeprefix("trellis_")), words[1:])

    def on_trellis_use_torch(self, words):
        self.library(words[0].removeprefix("trellis_")).torch = True


def declared(root, tops):
    """By name, the libraries below the folders `tops`."""
    known = files(root, (".cpp", ".h"))
    libraries = {}
    for file in files(root, ("CMakeLists.txt",)):
        folder = file.rpartition("/")[0]
        if folder.split("/")[0] in tops:
            Folder(root, folder, known, libraries)
    return libraries
