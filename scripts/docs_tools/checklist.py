"""The page of features and their tests: features of tests/checklist.yaml, what holds from the names
of the cases."""

import re
import sys

from docs_tools.commands import SOURCE

sys.path.insert(0, str(SOURCE / "tests/lint"))
import check_checklist  # noqa: E402

WORD = re.compile(r"NxDTs?|NxDs?|NeMos?|[A-Z][a-z]+|[A-Z]+(?![a-z])|[a-z]+|\d+")
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
