"""The commands of shell scripts, for the program that starts it. Nothing of a script is executed.

Lines of JSON on stdin: {"text": …}. Answers on stdout are a line with their length in bytes and a
line of JSON. {"commands": [[word, …], …], "lists": [[word, …], …]}: every simple command that bash
would start, in its order, and the variables that hold arguments when the script ends. A word is
[text, line, undetermined, assumed]: what bash makes of it; where it is written; what decides it
that is not known ("": its text is bash's); the variable that no one sets, of which the default is
taken. {"error": …, "line": …}: the text is no script.

tree-sitter parses; a walk over its tree keeps what bash would know: assignments, functions that
are called, scopes. Where a script may go two ways, both are walked, and what they disagree on is
marked. Whatever the walk does not know marks every variable.
"""

import json
import re
import resource
import sys
import time

from shell_state import (
    PATTERN,
    Piece,
    Refused,
    Source,
    State,
    is_known,
    joined,
    lists,
    marked,
    merged,
    plain,
    rest_of,
    same,
    shown,
    word_of,
)
from shell_words import NAME, Words

MOST_BYTES = 4 << 30  # of address space
MOST_SECONDS = 120  # of all scripts together; the program waits 60 for each
MOST_STEPS = 50_000
MOST_SECONDS_OF_WALK = 20
MOST_CALLS = 32  # of functions within functions

# As names of commands: the grammar took what follows `time` for one.
MISREAD = ("{", "}", "!", "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done")


class Shell(Words):
    """Walks a tree, and keeps what bash would start."""

    def __init__(self, parser):
        super().__init__(State())
        self.parser, self.commands, self.steps = parser, [], 0
        self.until = time.process_time() + MOST_SECONDS_OF_WALK
        self.exits, self.loops = [], []  # of functions and loops that run: states that leave them

    def script(self, source):
        """Runs a text in the state of now. Throws Refused."""
        root = self.parser.parse(source.text).root_node
        if root.has_error:
            refuse(root, source)
        outer, self.source = self.source, source
        self.run_all(root.children)
        self.source = outer

    def run(self, node):
        """Whether it is certain to succeed."""
        if not self.state.alive:
            return None
        self.steps += 1
        if self.steps > MOST_STEPS or time.process_time() > self.until:
            raise Refused("its loops and conditions are nested too deep to be read", 1)
        run = getattr(self, "run_" + node.type, None)
        if run is not None:
            return run(node)
        self.state.forget_all(shown(self.text_of(node)))
        return None

    def run_all(self, nodes):
        status = None
        for i, node in enumerate(nodes):
            if not node.is_named or node.type == "comment":
                continue
            if i + 1 < len(nodes) and nodes[i + 1].type == "&":
                self.aside(node)
            else:
                status = self.run(node)
        return status

    def aside(self, *nodes):
        """In a subshell."""
        outer = self.state, self.exits, self.loops
        self.state, self.exits, self.loops = self.state.copy(), [[] for _ in self.exits], []
        self.run_all(nodes)
        self.state, self.exits, self.loops = outer

    def maybe(self, nodes, why):
        before = self.state.copy()
        self.run_all(nodes)
        self.state = merged([self.state, before], before, why)

    def condition(self, node):
        return f"the condition in line {self.line_of(node)}"

    def run_list(self, node):
        left, operator, right = node.children[:3]
        succeeds = self.run(left)
        if operator.type == "&&" and succeeds:
            return self.run(right)
        if not (operator.type == "||" and succeeds):
            self.maybe([right], self.condition(node))
        return succeeds if operator.type == "||" else None

    def run_pipeline(self, node):
        parts = [child for child in node.named_children if child.type != "comment"]
        for part in parts[:-1]:
            self.aside(part)
        self.run(parts[-1]) if self.state.last_here else self.aside(parts[-1])

    def run_subshell(self, node):
        self.aside(*node.named_children)

    def run_negated_command(self, node):
        self.run(node.named_children[-1])

    def run_compound_statement(self, node):
        if node.children[0].type == "((":
            self.arithmetic(node.text.decode(errors="replace")[2:-2], node)
            return None
        return self.run_all(node.children)

    run_do_group = run_compound_statement

    def run_test_command(self, node):
        self.effects(node)

    def run_redirected_statement(self, node):
        body, *redirects = node.named_children
        if body.type.endswith("_redirect"):
            redirects, body = node.named_children, None
        status = self.run(body) if body is not None else None
        for redirect in redirects:
            self.effects(redirect)
            more = [
                child
                for child in redirect.named_children
                if redirect.type == "heredoc_redirect" and hasattr(self, "run_" + child.type)
            ]
            if more:
                self.maybe(more, self.condition(redirect))
        return status

    def run_if_statement(self, node):
        """Of an elif_clause too."""
        kinds = [child.type for child in node.children]
        then = kinds.index("then")
        end = next((i for i, kind in enumerate(kinds) if kind.endswith("_clause")), len(kinds))
        self.run_all(node.children[1:then])
        before = self.state.copy()
        self.run_all(node.children[then + 1 : end])
        ways, self.state = [self.state], before.copy()
        for clause in node.children[end:]:
            if clause.type == "else_clause":
                self.run_all(clause.children[1:])
            elif clause.type == "elif_clause":
                then = [child.type for child in clause.children].index("then")
                self.run_all(clause.children[1:then])
                rest = self.state.copy()
                self.run_all(clause.children[then + 1 :])
                ways.append(self.state)
                self.state = rest
        self.state = merged([*ways, self.state], before, self.condition(node))

    def run_case_statement(self, node):
        before, falls, ways, covers = self.state.copy(), None, [], False
        for item in (child for child in node.named_children if child.type == "case_item"):
            kinds = [child.type for child in item.children]
            body = kinds.index(")") + 1
            covers |= item.text.lstrip(b"( ").startswith(b"*)")
            why = self.condition(node)
            self.state = before.copy()
            if falls is not None:
                self.state = merged([self.state, falls], before, why)
            self.run_all(item.children[body:])
            falls = self.state.copy() if kinds[-1] in (";&", ";;&") else None
            ways.append(self.state)
        ways += [] if covers else [before.copy()]
        self.state = merged(ways, before, self.condition(node)) if ways else before

    def run_for_statement(self, node):
        """And select: its list is not walked value by value."""
        variable = self.text_of(node.child_by_field_name("variable") or node.named_children[0])
        words = [child for child in node.named_children if child.type != "do_group"][1:]
        self.words(words)
        self.loop(node, [node.named_children[-1]], variable)

    def run_while_statement(self, node):
        self.loop(node, node.children[1:])

    def run_c_style_for_statement(self, node):
        text = self.text_of(node)
        self.forget_assigned(text[text.index("((") : text.index("))")], self.line_of(node))
        self.loop(node, [node.named_children[-1]])

    def loop(self, node, body, variable=None):
        """A body that runs any number of times: until nothing more changes from the first time to
        the next."""
        why, line = f"the loop in line {self.line_of(node)}", self.line_of(node)
        before, commands = self.state.copy(), self.commands
        start, grown = before.copy(), set()
        while True:
            self.commands, self.state = [], start.copy()
            self.loops.append([])
            if variable:
                self.assign(variable, ((Piece("$" + variable, line, why),),))
            self.run_all(body)
            end = merged([self.state, *self.loops.pop()], start, why)
            if not end.alive or not self.differs(start, end, grown, why, line):
                break
        self.commands = commands + self.commands
        self.state = merged([start, end], before, why)

    @staticmethod
    def differs(start, end, grown, why, line):
        """Whether the next time begins otherwise than `start`, which is then changed."""
        changed = False
        for name, value in end.values.items():
            old = start.values.get(name)
            rest = rest_of(value, old)
            known = is_known(old[0]) if old else True
            if same(value, old) or (rest is not None and name in grown) or name in start.odd:
                continue
            if not known and name not in grown and why in [piece.why for piece in old[0]]:
                continue  # nothing is known about it already
            changed = True
            if rest is not None and name not in grown:
                grown.add(name)
                start.values[name] = joined((old, value), old, why)
            else:
                grown.discard(name)
                start.forget(name, why, line)
        if start.arguments is not None and end.arguments != start.arguments:
            start.arguments, changed = None, True
        if end.unknown and not start.unknown:
            start.forget_all(end.unknown)
            changed = True
        for name, body in end.functions.items():
            if start.functions.get(name) is not body and name in start.functions:
                changed |= start.functions[name] is not None
                start.functions[name] = None
        return changed

    def run_function_definition(self, node):
        body = node.child_by_field_name("body") or node.named_children[-1]
        name = self.text_of(node.child_by_field_name("name") or node.named_children[0])
        self.state.functions[name] = (self.source, body)

    def call(self, name, words):
        """Of a function that the script defines."""
        defined = self.state.functions[name]
        if defined is None or len(self.exits) >= MOST_CALLS:
            return self.state.forget_all(f"the function {name}, which may be another")
        before, source = self.state.copy(), self.source
        self.state.saved.append({})
        outer, self.state.arguments = self.state.arguments, words
        self.exits.append([])
        loops, self.loops = self.loops, []
        self.source = defined[0]
        self.run(defined[1])
        self.source, self.loops = source, loops
        why = f"a return of the function {name}"
        state = self.state = merged([self.state, *self.exits.pop()], before, why)
        for each, value in state.saved.pop().items():
            state.values.pop(each, None)
            if value is not None:
                state.values[each] = value
        state.arguments = outer if not state.unknown else None

    # Assignments.

    def assigned(self, node):
        """(name, value, appends, is_list, index) of NAME=…"""
        target, *_ = node.named_children
        at = next(i for i, child in enumerate(node.children) if child.type in ("=", "+="))
        nodes = [child for child in node.children[at + 1 :] if child.is_named]
        is_list = bool(nodes) and nodes[0].type == "array"
        if not is_list:
            value = (self.one(nodes),)
        elif any(re.match(rb"\[[^]]*\]\+?=", each.text) for each in nodes[0].named_children):
            text = self.text_of(nodes[0])
            value = ((Piece(shown(text), self.line_of(node), shown(text)),),)
        else:
            value = tuple(self.words(nodes[0].children))
        name, index = self.text_of(target), None
        if target.type == "subscript":
            name, index = name[:-1].split("[", 1)
        return name, value, node.children[at].type == "+=", is_list, index

    def run_variable_assignment(self, node):
        self.assign(*self.assigned(node))
        return b"$(" not in node.text and b"`" not in node.text

    def run_variable_assignments(self, node):
        return all([self.run(child) for child in node.named_children])

    def run_declaration_command(self, node):
        kind, items = node.children[0].type, []
        for child in node.named_children:
            if child.type == "variable_assignment":
                items.append(self.assigned(child))
            else:
                items += self.words([child])
        self.declare(kind, items)
        return b"$(" not in node.text and b"`" not in node.text

    def declare(self, kind, items):
        """items: words, and assignments."""
        texts = [plain(item) for item in items if not isinstance(item[0], str)]
        flags = "".join(text[1:] for text in texts if text.startswith("-"))
        if kind == "local" and not self.state.saved:
            return None  # bash has no scope for it
        local = kind == "local" or (kind in ("declare", "typeset") and "g" not in flags)
        if "n" in flags and kind != "export":
            return self.state.forget_all(f"{kind} -n, another name of a variable")
        for item in items:
            if isinstance(item[0], str):
                self.declare_one(kind, flags, local, item[0], item)
                continue
            name, equals, value = plain(item).partition("=")
            if not is_known(item) and not equals:
                self.state.forget_all(f"{kind} {shown(plain(item))}")
            elif re.fullmatch(NAME, name):
                text = marked((Piece(value, 0),), next((p.why for p in item if p.why), ""))
                self.declare_one(kind, flags, local, name, (name, (text,)) if equals else None)

    def declare_one(self, kind, flags, local, name, assignment):
        state = self.state
        if local and state.saved:
            state.saved[-1].setdefault(name, state.values.get(name))
            if assignment is None:
                state.values[name] = ()
        if set(flags) & set("iAul"):
            state.odd.add(name)
        if assignment is not None:
            self.assign(*assignment)
        if kind == "export" or "x" in flags:
            state.exported.add(name)
        if kind == "readonly" or "r" in flags:
            state.readonly.add(name)

    def run_unset_command(self, node):
        self.do_unset(self.words(node.named_children))

    def do_unset(self, words):
        functions = [plain(word) for word in words[:1]] == ["-f"]
        for word in words:
            name = plain(word)
            if not is_known(word) or "[" in name:
                self.state.forget_all(f"unset {shown(name)}")
            elif functions or (name not in self.state.values and name in self.state.functions):
                self.state.functions.pop(name, None)
            elif any(name in each for each in self.state.saved):
                self.state.forget(name, "unset of a local variable")
            elif name not in self.state.readonly:
                self.state.values[name] = ()

    # Commands.

    def run_command(self, node):
        prefix, words = [], []
        for child in node.named_children:
            if child.type == "variable_assignment":
                prefix.append(self.assigned(child))
            elif child.type.endswith("_redirect"):
                self.effects(child)
            else:
                words.append(child)
        words = self.words(words)
        if not words:
            for assignment in prefix:
                self.assign(*assignment)
            return None
        outer = {name: self.state.values.get(name) for name, *_ in prefix}
        exported = set(self.state.exported)
        for assignment in prefix:
            self.assign(*assignment)
            self.state.exported.add(assignment[0])
        status = self.start(words)
        for name, value in outer.items():
            self.state.values.pop(name, None)
            if value is not None:
                self.state.values[name] = value
        self.state.exported = exported
        return status

    def start(self, words):
        """A function, a builtin or a program."""
        rest = words
        while rest and plain(rest[0]) in ("time", "command", "builtin", "-p"):
            rest = rest[1:]
        name = plain(rest[0]) if rest and is_known(rest[0]) else ""
        if name in self.state.functions and plain(words[0]) not in ("command", "builtin"):
            return self.call(name, rest[1:])
        if name in MISREAD:
            return self.state.forget_all(f"'{name}', which is not a command")
        if re.match(rf"{NAME}\+?=", name):
            return self.declare("export", rest)  # after `time`, which is a word of the language
        if name in ("true", ":"):
            return True
        if name in ("export", "local", "declare", "typeset", "readonly"):
            return self.declare(name, rest[1:])
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, rest[1:])
        if name == "coproc":
            return self.record(rest[1:])
        return self.record(words)

    def record(self, words):
        """A program that is started. A script in one of its words is read in place of it."""
        if plain(words[0]).rsplit("/", 1)[-1] not in ("echo", "printf", "test", "cat"):
            for i, word in enumerate(words):
                flag = re.fullmatch(r"-[a-z]*c", plain(words[i - 1])) if i else None
                shell = flag and plain(words[i - 2]).rsplit("/", 1)[-1] in ("bash", "sh", "zsh")
                if (shell or re.search(r"\.py\s", plain(word))) and re.search(r"\s", plain(word)):
                    return self.inner(words[:i], word, bool(shell))
        self.commands.append(words)
        return None

    def inner(self, before, word, here):
        """`here`: with the variables that are exported; else on another machine."""
        outer, commands = self.state, self.commands
        self.state, self.commands = State(), []
        if here:
            names = outer.exported & outer.values.keys()
            self.state.values = {name: outer.values[name] for name in names}
        try:
            self.script(Source(list(word)))
        except Refused:
            self.commands = [[word]]
        inner, self.state, self.commands = self.commands, outer, commands
        for words in inner:
            trains = any(plain(each).endswith(".py") for each in words)
            self.commands.append([*before, *words] if trains else words)

    def do_eval(self, words):
        pieces = [piece for word in words for piece in (*word, Piece(" ", 0))]
        if all(is_known(word) for word in words):
            self.script(Source(pieces))
            return
        outer = self.state.copy()
        try:
            self.script(Source(pieces))
        except Refused:
            pass
        self.state = outer
        outer.forget_all(shown("eval " + plain(pieces)))

    def do_source(self, words):
        self.state.forget_all(shown(" ".join(["source", *map(plain, words)])))

    def do_names(self, words):
        """It gives variables values that only bash knows."""
        for word in words:
            if not is_known(word):
                self.state.forget_all(shown("read " + plain(word)))
            elif re.fullmatch(NAME, plain(word)) and plain(word) not in self.state.readonly:
                line = word[0].line if word else 0
                self.state.forget(plain(word), f"${plain(word)}, which the script reads", line)

    def do_printf(self, words):
        if len(words) > 1 and plain(words[0]).startswith("-v"):
            self.do_names([(Piece(plain(words[0])[2:], 0),), words[1]])

    def do_let(self, words):
        for word in words:
            patterns = all(not p.why or p.why.endswith(PATTERN) for p in word)
            if is_known(word) or patterns:  # no file is called "N=N*2"
                self.arithmetic(plain(word), self.parser.parse(b"x").root_node)
            else:
                self.state.forget_all(shown("let " + plain(word)))

    def do_shift(self, words):
        arguments = self.state.arguments
        count = plain(words[0]) if words else "1"
        known = arguments is not None and count.isdigit()
        self.state.arguments = arguments[int(count) :] if known else None

    def do_set(self, words):
        if words and plain(words[0]) == "--":
            self.state.arguments = words[1:]
        elif words and not plain(words[0]).startswith(("-", "+")):
            self.state.arguments = words
        elif any(plain(word) == "--" for word in words):
            self.state.arguments = None

    def do_shopt(self, words):
        self.state.last_here |= any(plain(word) == "lastpipe" for word in words)

    def do_trap(self, words):
        signals = [plain(word) for word in words[1:]]
        if any(each in ("DEBUG", "ERR", "RETURN") or "$" in each for each in signals):
            trap = shown("trap " + " ".join(map(plain, words)))
            raise Refused(f"'{trap}' runs commands between all others: remove it", words[0][0].line)

    def do_exec(self, words):
        if words:
            self.record(words)
            self.state.alive = False

    def do_exit(self, words):
        self.state.alive = False

    def do_return(self, words):
        if self.exits:  # a script itself goes on
            self.exits[-1].append(self.state.copy())
            self.state.alive = False

    def do_break(self, words):
        for loop in self.loops if words else self.loops[-1:]:
            loop.append(self.state.copy())
        self.state.alive = not self.loops


BUILTINS = {
    "eval": Shell.do_eval,
    ".": Shell.do_source,
    "source": Shell.do_source,
    "read": Shell.do_names,
    "mapfile": Shell.do_names,
    "readarray": Shell.do_names,
    "getopts": Shell.do_names,
    "printf": Shell.do_printf,
    "let": Shell.do_let,
    "unset": Shell.do_unset,
    "shift": Shell.do_shift,
    "set": Shell.do_set,
    "shopt": Shell.do_shopt,
    "trap": Shell.do_trap,
    "exec": Shell.do_exec,
    "exit": Shell.do_exit,
    "return": Shell.do_return,
    "break": Shell.do_break,
    "continue": Shell.do_break,
}


def refuse(root, source):
    """The innermost place at which the grammar ends."""
    node = root
    while True:
        children = [child for child in node.children if child.has_error or child.is_missing]
        if not children or (node.is_error and all(child.is_missing for child in children)):
            break
        node = children[0]
    line = source.line(node.start_byte)
    if node.is_missing:
        raise Refused(f"this is no script of bash: expected '{node.type}'", line)
    text = shown(node.text.decode(errors="replace"))
    raise Refused(f"this is no script of bash: it is not understood from '{text}' on", line)


def answer(parser, text):
    shell = Shell(parser)
    try:
        shell.script(Source([Piece(text.replace("\r\n", "\n"), 1)]))
    except Refused as error:
        return {"error": str(error), "line": error.line}
    except RecursionError:
        return {"error": "its commands are nested too deep to be read", "line": 1}
    return {
        "commands": [[word_of(word) for word in words] for words in shell.commands],
        "lists": [[word_of(word) for word in words] for words in lists(shell.state)],
    }


def say(document):
    line = json.dumps(document).encode() + b"\n"
    sys.stdout.buffer.write(b"%d\n" % len(line) + line)
    sys.stdout.buffer.flush()


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    sys.setrecursionlimit(4000)
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        return say({"error": f"{sys.executable} has no tree-sitter ({error})", "line": 0})
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    for line in sys.stdin.buffer:
        say(answer(parser, json.loads(line)["text"]))


main()
