"""What a conformance case is, and the register of families.

A case = family / subject / dtype, e.g. `forward/nn.functional.gelu/bfloat16`. A family is one
module in families/:

    @family("forward", "every operator's result equals the CPU's, bit for bit")
    class Forward:
        @staticmethod
        def cases():                  # yields (subject, dtype name), cheap: nothing is run
        @staticmethod
        def run(subject, dtype):      # returns, or raises: Skip (nothing to prove here), anything
        else is a failure
        environment = {…}             # optional: variables of the processes that run this family
"""

import dataclasses
import importlib
import pathlib

FAMILIES = {}


class Skip(Exception):
    """The case does not exist on the CPU either (and was checked to fail on neuron, too), or has no
    applicable sample."""


@dataclasses.dataclass(frozen=True, order=True)
class Case:
    family: str
    subject: str
    dtype: str

    def __str__(self):
        return f"{self.family}/{self.subject}/{self.dtype}"


def family(name, purpose):
    def register(body):
        body.name, body.purpose = name, purpose
        FAMILIES[name] = body
        return body

    return register


def load_families():
    for module in sorted(pathlib.Path(__file__).with_name("families").glob("[a-z]*.py")):
        importlib.import_module(f"families.{module.stem}")
    return FAMILIES


def all_cases(families=None):
    """Every case, in a fixed order: families by name, subjects as PyTorch lists them."""
    for name, body in sorted(load_families().items()):
        if families and name not in families:
            continue
        seen = set()
        for subject, dtype in body.cases():
            case = Case(name, subject, dtype)
            if case in seen:
                raise ValueError(f"{case} is listed twice")
            seen.add(case)
            yield case


def run_case(case):
    load_families()[case.family].run(case.subject, case.dtype)


def checks(table):
    """A family of hand-written checks: `table` maps a subject to a function without arguments."""
    return ((name, "any") for name in table)
