"""What bash knows at one place of a script, and what it knows where several ways meet."""

import re
from bisect import bisect
from copy import copy
from typing import NamedTuple

# What bash gives them is not what a script assigns.
ODD = """RANDOM SECONDS LINENO BASHPID EPOCHSECONDS EPOCHREALTIME SRANDOM HISTCMD FUNCNAME GROUPS
DIRSTACK PIPESTATUS BASH_REMATCH BASH_SOURCE BASH_LINENO BASH_COMMAND BASH_SUBSHELL BASH_ARGV0 UID
EUID PPID PWD OLDPWD OPTARG OPTIND REPLY MAPFILE COPROC _""".split()

PATTERN = ", a pattern of file names"


class Refused(Exception):
    def __init__(self, text, line):
        super().__init__(text)
        self.line = line


class Piece(NamedTuple):
    """Characters that belong together. why: what decides them, "" where they are known."""

    text: str
    line: int
    why: str = ""
    assumed: str = ""


# A text is a tuple of pieces, a value a tuple of texts: one for a scalar, none for what is unset.


def shown(text):
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= 60 else text[:60] + "…"


def plain(text):
    return "".join(piece.text for piece in text)


def is_known(text):
    return not any(piece.why for piece in text)


def marked(text, why):
    if why and not plain(text):
        return (Piece('""', text[0].line if text else 0, why),)  # visible
    return tuple(piece._replace(why=piece.why or why) for piece in text)


def runs(text):
    """Its characters with why they are not known, wherever they come from."""
    result = []
    for piece in text:
        if result and result[-1][1] == piece.why:
            result[-1] = (result[-1][0] + piece.text, piece.why)
        elif piece.text:
            result.append((piece.text, piece.why))
    return result


def same(a, b):
    if a is None or b is None:
        return a is b
    return a == b or (len(a) == len(b) and all(runs(x) == runs(y) for x, y in zip(a, b)))


def rest_of(value, base):
    """What `value` has after `base`: elements of a list or characters of a scalar, or None."""
    if value is None or not base or len(value) < len(base):
        return None
    if same(value[: len(base)], base):
        return value[len(base) :], ()
    if len(base) > 1 or len(value) > 1:
        return None
    old, pieces = list(base[0]), list(value[0])
    if len(pieces) < len(old) or runs(pieces[: len(old)]) != runs(old):
        return None
    return (), tuple(pieces[len(old) :])


class Source:
    """A text, and where each of its characters comes from."""

    def __init__(self, pieces):
        self.pieces, self.starts, self.text = pieces, [], b""
        for piece in pieces:
            self.starts.append(len(self.text))
            self.text += piece.text.encode()
        self.newlines = [match.start() for match in re.finditer(b"\n", self.text)]

    def line(self, offset):
        at = max(bisect(self.starts, offset) - 1, 0)
        first = bisect(self.newlines, self.starts[at] - 1) if self.starts else 0
        before = bisect(self.newlines, offset - 1)
        return (self.pieces[at].line if self.pieces else 1) + before - first

    def cut(self, begin, end):
        """Pieces of a range of bytes."""
        result = []
        at = max(bisect(self.starts, begin) - 1, 0)
        while begin < end and at < len(self.starts):
            until = min(end, self.starts[at + 1] if at + 1 < len(self.starts) else end)
            text = self.text[begin:until].decode(errors="replace")
            piece = self.pieces[at]
            result.append(Piece(text, self.line(begin), piece.why, piece.assumed))
            begin, at = until, at + 1
        return result


class Fields:
    """A word while it is read: unquoted expansions cut it into several."""

    def __init__(self):
        self.done, self.pieces, self.open, self.pattern = [], [], False, False

    def add(self, piece, splits=False):
        if not splits:
            self.pieces.append(piece)
            self.open = self.open or bool(piece.text)
            return
        line = piece.line
        for part in re.split(r"([ \t\n]+)", piece.text):
            if part and not part.isspace():
                self.pieces.append(piece._replace(text=part, line=line))
                self.open = True
            elif part:
                self.cut()
            line += part.count("\n")

    def cut(self):
        if self.open:
            if self.pattern and is_known(self.pieces):
                word = plain(self.pieces)
                self.pieces = list(marked(self.pieces, f"{shown(word)}{PATTERN}"))
            self.done.append(tuple(self.pieces))
        self.pieces, self.open, self.pattern = [], False, False

    def take(self):
        self.cut()
        return self.done


class State:
    """What bash knows at one place."""

    def __init__(self):
        self.values = {}  # name → value; a name that is missing is the environment's
        self.functions = {}  # name → (source, body), None: not certain which
        self.odd, self.readonly, self.exported = set(ODD), set(), set()
        self.saved = []  # of each function that runs: name → the value outside
        self.arguments = None  # $1, $2, …; None: the caller's
        self.alive = True
        self.unknown = ""  # why every other variable is not known
        self.last_here = False  # the last part of a pipeline runs in this shell

    def copy(self):
        other = copy(self)
        other.values, other.functions = dict(self.values), dict(self.functions)
        other.odd, other.readonly = set(self.odd), set(self.readonly)
        other.exported, other.saved = set(self.exported), [dict(each) for each in self.saved]
        return other

    def forget(self, name, why, line=0):
        self.values[name] = ((Piece("$" + name, line, why),),)

    def forget_all(self, why):
        for name in self.values:
            self.forget(name, why)
        for each in self.saved:
            for name in each:
                each[name] = ((Piece("$" + name, 0, why),),)
        self.unknown = why
        self.arguments = None


def joined(values, base, why):
    """One value for several that a variable may have, of which `base` is the one before."""
    if all(same(value, values[0]) for value in values):
        return values[0]
    rests = [rest_of(value, base) for value in values]
    if all(rest is not None for rest in rests):
        elements, pieces, seen = list(base), [], []
        for more, tail in rests:
            if (more or tail) and not any(same(more, a) and runs(tail) == runs(b) for a, b in seen):
                seen.append((more, tail))
                elements += [marked(text, why) for text in more]
                pieces += marked(tail, why) if tail else ()
        if pieces:
            elements[-1] = (*elements[-1], *pieces)
        return tuple(elements)
    others = [value for value in values if value is not None and not same(value, base)]
    filled = [value for value in [base, *others] if value and any(plain(text) for text in value)]
    if not filled:
        return (marked((), why),)
    return tuple(marked(text, why) for text in filled[-1])


def merged(states, before, why):
    """The state where several ways meet."""
    alive = [state for state in states if state.alive]
    if len(alive) <= 1:
        return alive[0] if alive else states[0]
    result = alive[0].copy()
    for name in dict.fromkeys(name for state in alive for name in state.values):
        values = [state.values.get(name) for state in alive]
        if any(not same(value, values[0]) for value in values):
            result.values[name] = joined(values, before.values.get(name, ()), why)
    for name in dict.fromkeys(name for state in alive for name in state.functions):
        bodies = [state.functions.get(name) for state in alive]
        result.functions[name] = bodies[0] if all(body is bodies[0] for body in bodies) else None
    for state in alive[1:]:
        result.odd |= state.odd | (state.readonly ^ result.readonly)
        result.exported |= state.exported
        result.unknown = result.unknown or state.unknown
        result.last_here = result.last_here or state.last_here
        if state.arguments != result.arguments:
            result.arguments = None
        for mine, other in zip(result.saved, state.saved):
            for name in mine.keys() ^ other.keys():
                mine[name] = ((Piece("$" + name, 0, why),),)
    return result


def lists(state):
    """Variables that hold arguments and are in no other one."""
    found = []
    for value in state.values.values():
        fields = Fields()
        for text in value:
            fields.cut()
            for piece in text:
                fields.add(piece, len(value) == 1)
        words = fields.take()
        if words and plain(words[0]).startswith("--"):
            found.append(words)
    texts = ["\0".join(["", *map(plain, words), ""]) for words in found]
    return [
        words
        for i, words in enumerate(found)
        if not any(texts[i] in other and i != j for j, other in enumerate(texts))
    ]


def word_of(text):
    first = next((piece for piece in text if piece.text), Piece("", text[0].line if text else 0))
    blanks = len(first.text) - len(first.text.lstrip("\n"))
    why = next((piece.why for piece in text if piece.why), "")
    assumed = next((piece.assumed for piece in text if piece.assumed), "")
    return [plain(text), first.line + blanks, why, assumed]
