"""Every test that tests/checklist.yaml names exists. Usage: check_checklist.py ROOT

Sections have features, and a feature units with cases: `UNIT: Suite.case, …`. A unit is a source
below tests/ (UNIT_test.cpp, UNIT_test.py or UNIT.py); `Suite.*` are all cases of a suite, `*` all
of a unit. In place of units a text says "later: …" or "none: …".
"""

import re
from dataclasses import dataclass

import yaml
from source_tree import files, lines, main

CHECKLIST = "tests/checklist.yaml"
NAME = re.compile(r"(\w+)\.(\w+|\*)")
CPP_CASE = re.compile(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
PYTHON_CASE = re.compile(r"^class (\w+)(?:\((\w+)\))?|^    def (test_\w+)", re.MULTILINE)


@dataclass
class Proof:
    """What a line says of a feature: a unit and its cases, or a text in their place (no unit)."""

    section: str
    feature: str
    unit: str
    text: str
    line: int

    def cases(self, units):
        """(suite, case) of those that are named and exist, in the order of the source."""
        names = [NAME.fullmatch(one.strip()) for one in self.text.split(",")]
        return [
            (suite, case)
            for suite, case in units.get(self.unit, {})
            if self.text == "*" or any(n and n[1] == suite and n[2] in ("*", case) for n in names)
        ]


def proofs(text):
    """In the order of the file."""

    def pairs(node):
        return node.value if isinstance(node, yaml.MappingNode) else []

    for section, features in pairs(yaml.compose(text)):
        for feature, units in pairs(features):
            for unit, cases in pairs(units):
                line = unit.start_mark.line + 1
                yield Proof(section.value, feature.value, unit.value, cases.value, line)
            if isinstance(units, yaml.ScalarNode):
                line = feature.start_mark.line + 1
                yield Proof(section.value, feature.value, "", units.value, line)


def cases_of(path, text):
    """All (suite, case) of a source, in its order."""
    if path.endswith(".cpp"):
        return dict.fromkeys(CPP_CASE.findall(text))
    cases, suite = {}, ""
    for name, base, case in PYTHON_CASE.findall(text):
        suite = name or suite
        if case:
            cases[suite, case] = None
        if base:
            cases |= {(suite, inherited): None for of, inherited in list(cases) if of == base}
    return cases


def units(root):
    """unit → its cases."""
    result = {}
    for path in files(root, (".cpp", ".py"), ["tests"]):
        unit = re.sub(r"(_test)?\.\w+$", "", path.removeprefix("tests/"))
        result.setdefault(unit, {}).update(cases_of(path, "\n".join(lines(root, path))))
    return result


def problems(proof, known):
    if not proof.unit:
        if not proof.text.startswith(("later: ", "none: ")):
            yield f"'{proof.feature}' has no test: name one, or say 'later: …' or 'none: …'"
    elif proof.unit not in known:
        yield f"there is no tests/{proof.unit}_test.cpp, _test.py or .py"
    elif proof.text != "*":
        for name in map(str.strip, proof.text.split(",")):
            if not NAME.fullmatch(name):
                yield f"'{name}' is no name of a test: expected Suite.case"
            elif not Proof("", "", proof.unit, name, 0).cases(known):
                yield f"tests/{proof.unit} has no case {name}"


def check(root):
    if not (root / CHECKLIST).exists():
        return
    known = units(root)
    for proof in proofs((root / CHECKLIST).read_text(encoding="utf-8")):
        for problem in problems(proof, known):
            yield f"{CHECKLIST}:{proof.line}: {problem}"


if __name__ == "__main__":
    main(check)
