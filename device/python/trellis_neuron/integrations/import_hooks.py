"""Calls a function when a module was imported, without importing it."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, function):
        self._loader, self._function = loader, function

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._function(module)

    def __getattr__(self, name):  # get_data, get_filename, …
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self.functions: dict[str, Callable] = {}

    def find_spec(self, fullname, path=None, target=None):
        function = self.functions.pop(fullname, None)  # so that the search below skips this finder
        if function is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, function)
        return spec


_finder = _Finder()


def after_import(name: str, function: Callable) -> None:
    """function(module) runs once: now, when the module is there already, or after its import."""
    if name in sys.modules:
        function(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.functions[name] = function
