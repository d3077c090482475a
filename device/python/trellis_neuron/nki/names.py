"""The names under which kernels import the language, where no package has them: one without `jit`
is a placeholder."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

PACKAGE = __package__
PARTS = ("", ".compiler", ".isa", ".language", ".typing")
NAMES = {f"{top}{part}": f"{PACKAGE}{part}" for top in ("nki", "neuronxcc.nki") for part in PARTS}


class _Loader(importlib.abc.Loader):
    def __init__(self, name):
        self.name = name

    def create_module(self, spec):
        if self.name == "neuronxcc":
            module = types.ModuleType("neuronxcc")
            module.__path__ = []
            return module
        module = importlib.import_module(NAMES[self.name])
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.is_emulated = True
        if self.name in NAMES:
            module.__spec__ = self.spec  # the import has put its own there


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, tops):
        self.tops = tops

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] not in self.tops or fullname not in (*NAMES, "neuronxcc"):
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(fullname), is_package=True)


def _has_jit(top) -> bool:
    """Whether a package of that name offers kernels, by its files: it is not imported."""
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    for place in spec.submodule_search_locations or []:
        inner = importlib.machinery.PathFinder.find_spec("nki", [place]) if top != "nki" else spec
        if inner is not None and inner.origin:
            with open(inner.origin, errors="replace") as source:
                return "jit" in source.read()
    return False


def register() -> None:
    """Leaves installed packages alone."""
    free = {top for top in ("nki", "neuronxcc") if not _has_jit(top)}
    if free:
        sys.meta_path.insert(0, _Finder(free))
