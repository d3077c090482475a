"""The module name by which libraries look for a Trainium: transformers and Accelerate use
`torch.neuron` where a module `torch_neuronx` can be found."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

NAME = "torch_neuronx"


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__doc__ = (
            "A name, not AWS's package: trellis_neuron provides the device `neuron` in this "
            "process. TRELLIS_INTEGRATIONS=0 removes the name."
        )
        module.is_emulated = True


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        return importlib.machinery.ModuleSpec(NAME, _Loader()) if fullname == NAME else None


def register() -> None:
    """Leaves an installed package of that name alone."""
    if importlib.util.find_spec(NAME) is None:
        sys.meta_path.append(_Finder())
