#!/usr/bin/env python3
"""What `trellis import` takes for the words of a script, against bash: a word that is known is the
one that bash passes."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import cli_case

READER = cli_case.SOURCE / "analysis/import/read_shell.py"
NAMES = "ABCD"


class Reader:
    """The reader's program, asked script by script."""

    def __init__(self):
        self.child = subprocess.Popen(
            [os.sys.executable, READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, text):
        self.child.stdin.write(json.dumps({"text": text}).encode() + b"\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.read(int(self.child.stdout.readline())))

    def close(self):
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()


def bash(text, folder):
    """The words of the last `final` that bash runs, or None."""
    script = 'final() { printf "<%s>\\0" "$@"; printf "end\\0"; }\n' + text
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
        )
    except subprocess.TimeoutExpired:  # a loop that goes on for ever
        return None
    words = done.stdout.decode().split("end\0")
    return [word[1:-1] for word in words[-2].split("\0")[:-1]] if len(words) > 1 else None


def known(reader, text):
    """(word, why it is not known) of the last `final`."""
    document = reader(text)
    finals = [words for words in document["commands"] if words[0][0] == "final"]
    return [(word[0], word[2]) for word in finals[-1][1:]] if finals else None


class Scripts:
    """Random ones, of everything that gives a variable a value or does not."""

    def __init__(self, seed):
        self.random, self.functions = random.Random(seed), []

    def pick(self, *texts):
        return self.random.choice(texts)

    def name(self):
        return self.random.choice(NAMES)

    def value(self):
        n = self.random.randrange(1, 100)
        a, b = self.name(), self.name()
        return self.pick(
            *(f"{n}", f"${a}", f'"${a} {n}"', f"${{{a}:-{n}}}", f"'${a}'", f"$(({n}*{n % 7}))"),
            *(f"$(echo {n})", f"${{{a}:={n}}}", f"$((${a}+1))", f"${{{a}:+{n}}}", f"{n}${b}x"),
            *(f'"${{{a}%1}}"', f"$(({a}={n}))", f"$(({a}++))", "", f"x\\ {n}", f'"${{{b}[0]}}"'),
        )

    def condition(self):
        return self.pick(
            "true", "false", f"[ ${self.name()} = 1 ]", "test -z $1", ":", "[[ -n x ]]"
        )

    def block(self, depth):
        return "; ".join(self.statement(depth) for _ in range(self.random.randrange(1, 3)))

    def simple(self):
        a, v, n = self.name(), self.value(), self.random.randrange(10)
        return self.pick(
            *(f"{a}={v}", f"{a}={v}", f"{a}+={v}", f"export {a}={v}", f"{a}=({v} {n})"),
            *(f"{a}={n} true", f"{a}={n} eval :", f"let {a}={n}", f"(({a}={n}*3))", f"(({a}+=1))"),
            *(f"({a}={n})", f"eval '{a}={n}'", f"eval {a}={v}", f"unset {a}", f"read {a} <<< {n}"),
            *(f"echo {n} | read {a}", f"{{ {a}={n}; }} | cat", f"printf -v {a} {n}", f"{a}={n} &"),
            *(f"source ./{a}.sh", f". ./{a}.sh", f"{a}+=({n})", f"declare {a}={n}", f"{a}[1]={n}"),
            *(f"cat <<E >/dev/null && {a}={n}\nE\n", f"time {a}={n}", f"command eval {a}={n}"),
            *(f"set -- {n} {v}", "shift", f"{a}=$1", f"local {a}={n}", f"declare -i {a}={n}+1"),
            *(f"typeset {a}", f"local {a}", f"readonly {a}", f"trap '{a}={n}' EXIT", "return"),
            *(f"declare -g {a}={n}", f"mapfile {a} < /dev/null", "break", f"! {a}={n}"),
        )

    def statement(self, depth):
        if depth == 0 or self.random.random() < 0.5:
            return self.simple()
        kind = self.random.randrange(9)
        body, c = self.block(depth - 1), self.condition()
        if kind == 0:
            function = f"f{len(self.functions)}"
            self.functions.append(function)
            return f"{function}() {{ {body}; }}"
        if kind == 1 and self.functions:
            prefix = self.pick("", "", f"{self.name()}=7 ", "! ", "true && ")
            return (
                prefix
                + self.random.choice(self.functions)
                + self.pick("", " 1 2", f" ${self.name()}")
            )
        if kind == 2:
            return f"if {c}; then {body}; else {self.block(depth - 1)}; fi"
        if kind == 3:
            return f"for {self.name()} in 1 2 3; do {body}; done"
        if kind == 4:
            return f"case {self.value()} in 1*) {body};; [0-9]) {self.block(depth - 1)};; esac"
        if kind == 5:
            return f"{c} {self.pick('&&', '||')} {self.simple()}"
        if kind == 6:
            return f"( {body} )"
        if kind == 7:
            i = f"i{depth}"
            return f"{i}=0; while (({i}++ < 2)); do {body}; done"
        return f"if {c}; then {body}; elif {self.condition()}; then {self.block(depth - 1)}; fi"

    def script(self):
        lines = [f"{name}={self.value()}" for name in NAMES]
        lines += [self.statement(3) for _ in range(self.random.randrange(1, 9))]
        return "\n".join([*lines, "final " + " ".join(f'"${name}"' for name in NAMES)]) + "\n"


class AgainstBash(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in NAMES:
            (self.folder / f"{name}.sh").write_text(f"{name}=sourced\n")
        self.reader = Reader()
        self.addCleanup(self.reader.close)

    def compare(self, text):
        """How many words are known."""
        words = bash(text, self.folder)
        ours = known(self.reader, text) if words is not None else None
        if words is None:
            return 0
        self.assertIsNotNone(ours, text)
        self.assertEqual(len(ours), len(words), text)
        for (word, why), expected in zip(ours, words):
            if not why:
                self.assertEqual(word, expected, f"{text}\n{ours}\nbash: {words}")
        return sum(not why for _, why in ours)

    def test_random_scripts(self):
        count = int(os.environ.get("TRELLIS_FUZZ_SCRIPTS", "200"))
        seed = int(os.environ.get("TRELLIS_FUZZ_SEED", "1"))
        sure = 0
        for i in range(seed, seed + count):
            text = Scripts(i).script()
            if "error" in self.reader(text):
                continue
            with self.subTest(seed=i):
                sure += self.compare(text)
        self.assertGreater(sure, count / 2, "words that are known")


if __name__ == "__main__":
    unittest.main()
