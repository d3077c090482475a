"""What PyTorch's own Python sources read from the module of a device is in torch.neuron, or in
NOT_THERE with the reason."""

import ast
import pathlib
import re
import unittest

import torch
import trellis_neuron  # noqa: F401

ROOT = pathlib.Path(torch.__file__).parent
LEFT_OUT = ("testing/", "cuda/", "xpu/", "mtia/", "mps/", "_inductor/fuzzer")
GIVES_A_MODULE = re.compile(r"_?get_device_(module|handle)$")
# Names that PyTorch gives to such a module: variables, members and parameters.
HOLDS_A_MODULE = re.compile(
    r"_?_?(device_module|device_handle|device_mod|custom_device_mod|custom_backend_module"
    r"|privateuse1_backend_module|accelerator_module|device_namespace)$"
)
NAMES_A_DEVICE = re.compile(r"device|backend|acc\b")

NOT_THERE = {
    "set_rng_ctx": "Habana's, which PyTorch asks for its own type of device only",
    "unset_rng_ctx": "Habana's",
    "sparse": "asked for by hasattr(): the device has strided tensors only",
}


class Reads(ast.NodeVisitor):
    """Attributes that a file reads from the module of a device, with the line of the first."""

    def __init__(self):
        self.found: dict[str, int] = {}
        self._names: set[str] = set()  # that hold such a module in this file

    def is_module(self, node) -> bool:
        if isinstance(node, ast.Name):
            return bool(HOLDS_A_MODULE.match(node.id)) or node.id in self._names
        if isinstance(node, ast.Attribute):
            return bool(HOLDS_A_MODULE.match(node.attr))
        if not isinstance(node, ast.Call):
            return False
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if GIVES_A_MODULE.match(called):
            return True
        return called == "getattr" and self._names_a_device(node.args)

    @staticmethod
    def _names_a_device(args) -> bool:
        """getattr(torch, device.type)"""
        return (
            len(args) >= 2
            and ast.unparse(args[0]) == "torch"
            and not isinstance(args[1], ast.Constant)
            and bool(NAMES_A_DEVICE.search(ast.unparse(args[1])))
        )

    def _note(self, name: str, node) -> None:
        self.found.setdefault(name, node.lineno)

    def visit_Assign(self, node):
        if self.is_module(node.value):
            self._names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Load):
            if self.is_module(node.value):
                self._note(node.attr, node)
            elif isinstance(node.value, ast.Attribute) and self.is_module(node.value.value):
                self._note(f"{node.value.attr}.{node.attr}", node)
        self.generic_visit(node)

    def visit_Call(self, node):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called in ("getattr", "hasattr") and len(node.args) >= 2:
            holder, name = node.args[:2]
            if self.is_module(holder) and isinstance(name, ast.Constant):
                self._note(name.value, node)
        if called == "_get_device_attr" and isinstance(node.args[0], ast.Lambda):
            self._names.add(node.args[0].args.args[0].arg)
        self.generic_visit(node)


def reads() -> dict[str, str]:
    """By attribute: one place that reads it."""
    found: dict[str, str] = {}
    word = re.compile(r"device_mod|device_handle|_backend_module|getattr\(torch, |_get_device_attr")
    for file in sorted(ROOT.rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        text = "" if place.startswith(LEFT_OUT) else file.read_text(encoding="utf-8")
        if word.search(text):
            visitor = Reads()
            visitor.visit(ast.parse(text))
            for name, line in visitor.found.items():
                found.setdefault(name, f"torch/{place}:{line}")
    return found


class DeviceModule(unittest.TestCase):
    def test_has_what_pytorch_reads(self):
        found = reads()
        self.assertGreaterEqual(set(found), {"_initialized", "get_rng_state", "Event", "device"})
        missing = {name: at for name, at in found.items() if not self.is_there(name)}
        self.assertEqual(missing.keys() - NOT_THERE.keys(), set(), missing)
        self.assertEqual(NOT_THERE.keys() - missing.keys(), set(), "listed, but there or unread")

    @staticmethod
    def is_there(name: str) -> bool:
        holder = torch.neuron
        for part in name.split("."):
            if not hasattr(holder, part):
                return False
            holder = getattr(holder, part)
        return True


if __name__ == "__main__":
    unittest.main()
