"""The page of features and their tests: features of tests/checklist.yaml, what holds from the names
of the cases."""

import re

from docs_tools.commands import SOURCE
from docs_tools.lints import check_checklist

WORD = re.compile(r"(?:NxDT|NxD|NeMo|ZeRO|LoRA)s?\d*|[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|\d+")
BEGIN = """# Features and the tests that prove them

What NxD Training, NxD and this program have, and what holds, in the words of the tests' cases.
`ctest --test-dir build/release -R '^UNIT'` runs a unit, which is a source below `tests/`. *Later*:
this version does not support it, and a configuration that asks for it is refused by name. In
addition, `trellis verify` compares every layout that a configuration allows with one rank.
"""


def sentence(case):
    """EachMistakeHasItsText, test_each_mistake_has_its_text: each mistake has its text."""
    words = WORD.findall(case.removeprefix("test_").replace("_", " "))
    return " ".join(w.lower() if w.istitle() else w for w in words)


def row(feature, proofs, units):
    holds, tests = [], []
    for proof in proofs:
        if not proof.unit:
            return f"| {feature} | — | {proof.text} |\n"
        tests.append(f"`{proof.unit}`")
        cases = {}
        for suite, case in proof.cases(units):
            cases.setdefault(suite, []).append(sentence(case))
        holds += [f"*{suite}*: {'; '.join(of)}" for suite, of in cases.items()]
    return f"| {feature} | {'<br>'.join(holds)} | {', '.join(tests)} |\n"


def page():
    text = (SOURCE / check_checklist.CHECKLIST).read_text()
    units = check_checklist.units(SOURCE)
    sections = {}
    for proof in check_checklist.proofs(text):
        features = sections.setdefault(proof.section, {})
        features.setdefault(proof.feature, []).append(proof)
    out = BEGIN
    for section, features in sections.items():
        out += f"\n## {section}\n\n| feature | what holds | tests |\n|---|---|---|\n"
        out += "".join(row(feature, proofs, units) for feature, proofs in features.items())
    return out
