"""Every test that docs/checklist.md names exists. Usage: check_checklist.py ROOT

A name is `unit:Suite.case`: the unit is a source below tests/ (UNIT_test.cpp, UNIT_test.py or
UNIT.py), `Suite.*` are all cases of a suite. Each row of a table names at least one, or says
"later: …" or "none: …".
"""

import re

from source_tree import files, lines, main

CHECKLIST = "docs/checklist.md"
NAME = re.compile(r"`([\w/]+):(\w+)\.(\w+|\*)`")
LIKE_A_NAME = re.compile(r"`[^`]*/[^`]*:[^`]*`")
CPP_CASE = re.compile(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
PYTHON_CASE = re.compile(r"^class (\w+)(?:\((\w+)\))?|^    def (test_\w+)", re.MULTILINE)


def cases_of(path, text):
    """All (suite, case) of a source."""
    if path.endswith(".cpp"):
        return set(CPP_CASE.findall(text))
    cases, suite = set(), ""
    for name, base, case in PYTHON_CASE.findall(text):
        suite = name or suite
        if case:
            cases.add((suite, case))
        if base:
            cases |= {(suite, inherited) for of, inherited in cases if of == base}
    return cases


def units(root):
    """unit → its cases."""
    result = {}
    for path in files(root, (".cpp", ".py")):
        if not path.startswith("tests/"):
            continue
        unit = re.sub(r"(_test)?\.\w+$", "", path.removeprefix("tests/"))
        result.setdefault(unit, set()).update(cases_of(path, "\n".join(lines(root, path))))
    return result


def name_problems(known, line):
    for unit, suite, case in NAME.findall(line):
        if unit not in known:
            yield f"there is no tests/{unit}_test.cpp, _test.py or .py"
        elif not any(suite == s and case in ("*", c) for s, c in known[unit]):
            yield f"tests/{unit} has no case {suite}.{case}"
    for like in LIKE_A_NAME.findall(line):
        if not NAME.fullmatch(like):
            yield f"{like} is no name of a test: expected `unit:Suite.case`"


def check(root):
    if not (root / CHECKLIST).exists():
        return
    known = units(root)
    for number, line in enumerate(lines(root, CHECKLIST), 1):
        if not line.startswith("|"):
            continue
        for problem in name_problems(known, line):
            yield f"{CHECKLIST}:{number}: {problem}"
        proof = line.strip("|\n ").split(" | ")[-1]
        is_row = not proof.startswith(("---", "tests"))
        if is_row and not NAME.search(proof) and not proof.startswith(("later: ", "none: ")):
            yield (
                f"{CHECKLIST}:{number}: a row without a test: name one, or say 'later: …' or "
                "'none: "
                "…'"
            )


if __name__ == "__main__":
    main(check)
