"""Words of bash, expanded in a state."""

import ast
import re

from shell_state import Fields, Piece, Refused, is_known, marked, plain, shown

MOST_CHARACTERS = 1 << 22  # that expansions make; Linux passes command lines of 2 MiB at most

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGNS = re.compile(
    rf"({NAME})(?:\[[^]]*\])?\s*(?:=(?!=)|[-+*/%&|^]=|<<=|>>=|\+\+|--)|(?:\+\+|--)\s*({NAME})"
)
ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\", b"'": b"'", b'"': b'"'}
ANSI_C = rb"\$'(?:[^\\]|\\[ntr\\'\"])*'"
DEFAULTS = re.compile(rf"\$\{{({NAME}):?=")


def calculated(text, look_up):
    """The value of an arithmetic expression of bash without assignments, or None."""
    text = " ".join(text.split())
    if not re.fullmatch(r"[A-Za-z0-9_ ()+\-*/%]+", text) or re.search(r"\*\*|//|\d_", text):
        return None

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return int(re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", look_up(node.id) or "")[0])
        if isinstance(node, ast.UnaryOp):
            return value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
        a, b = value(node.left), value(node.right)
        if isinstance(node.op, (ast.Div, ast.Mod)):
            quotient = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
            return quotient if isinstance(node.op, ast.Div) else a - quotient * b
        kinds = {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}
        return kinds[type(node.op)]

    try:
        result = value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return None
    return str(result) if -(2**63) <= result < 2**63 else None


class Words:
    """Expands words in a state."""

    def __init__(self, state):
        self.state, self.source, self.assumed = state, None, ""
        self.characters = 0

    def charge(self, count, line):
        self.characters += count
        if self.characters > MOST_CHARACTERS:
            limit = f"the variables expand to more than {MOST_CHARACTERS} characters"
            raise Refused(limit, line)

    def text_of(self, node):
        return node.text.decode(errors="replace").lstrip()

    def line_of(self, node):
        return self.source.line(node.start_byte)

    def words(self, nodes):
        """Nodes of a command as words: those that touch are one."""
        result, group = [], []
        for node in [*(node for node in nodes if node.is_named and node.type != "comment"), None]:
            if group and (node is None or node.start_byte != group[-1].end_byte):
                result += self.word(group)
                group = []
            group.append(node)
        return result

    def word(self, nodes):
        fields = Fields()
        for node in nodes:
            self.expand(node, fields, False, True)
        raw = self.source.text[nodes[0].start_byte : nodes[-1].end_byte].decode(errors="replace")
        if "~" not in raw and "{" not in raw:
            return fields.take()
        bare = re.sub(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", "", raw, flags=re.DOTALL)
        if bare.startswith("~") or re.search(r"(?<!\$)\{[^{}]*(,|\.\.)[^{}]*\}", bare):
            return [(Piece(raw, self.line_of(nodes[0]), shown(raw)),)]
        return fields.take()

    def one(self, nodes):
        """The text of an assignment: not split."""
        fields = Fields()
        for node in nodes:
            self.expand(node, fields, False, False)
        fields.pattern = False
        texts = fields.take()
        raw = b"".join(node.text for node in nodes).decode(errors="replace")
        if re.match(r"~|.*:~", raw):
            texts = [marked(text, shown(raw)) for text in texts]
        return texts[0] if texts else ()

    def expand(self, node, fields, quoted, splits, cuts=False):
        kind = node.type
        if kind in ("word", "number", "variable_name", "extglob_pattern", "regex"):
            if node.named_child_count:
                return self.unknown(node, fields)
            return self.literal(node.start_byte, node.end_byte, fields, quoted, cuts)
        if kind in ("command_name", "concatenation"):
            for child in node.children:
                self.expand(child, fields, quoted, splits, cuts)
        elif kind == "string":
            self.string(node, fields)
        elif kind == "raw_string":
            for piece in self.source.cut(node.start_byte + 1, node.end_byte - 1):
                fields.add(piece)
            fields.open = True
        elif kind == "simple_expansion":
            self.parameter(node, self.text_of(node)[1:], fields, quoted, splits)
        elif kind == "expansion":
            self.parameter(node, self.text_of(node)[2:-1], fields, quoted, splits)
        elif kind == "arithmetic_expansion":
            self.arithmetic_expansion(node, fields)
        elif kind == "ansi_c_string" and re.fullmatch(ANSI_C, node.text, re.S):
            text = re.sub(rb"\\(.)", lambda match: ESCAPES[match[1]], node.text[2:-1], flags=re.S)
            piece = self.source.cut(node.start_byte, node.start_byte + 1)[0]
            fields.add(piece._replace(text=text.decode(errors="replace")))
            fields.open = True
        elif node.is_named:
            self.unknown(node, fields)

    def literal(self, begin, end, fields, quoted, cuts=False):
        for piece in self.source.cut(begin, end):
            line = piece.line
            if not re.search(r"[\\*?\[]", piece.text):
                fields.add(piece._replace(assumed=self.assumed or piece.assumed), cuts)
                continue
            for part in re.split(r"(?<!\\)\\\n", piece.text):
                escape = r'\\([$`"\\])' if quoted else r"\\(.)"
                text = re.sub(escape, r"\1", part, flags=re.DOTALL)
                bare = "" if quoted else re.sub(r"\\.", "", part)
                fields.pattern |= bool(re.search(r"[*?]|\[[^]]+\]", bare))
                piece = piece._replace(text=text, line=line, assumed=self.assumed or piece.assumed)
                fields.add(piece, cuts)
                line += part.count("\n") + 1

    def string(self, node, fields):
        at = node.start_byte + 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            text = child.text
            begin = child.start_byte + len(text) - len(text.lstrip())  # blanks belong to the string
            self.literal(at, begin, fields, True)
            self.expand(child, fields, True, False)
            at = child.end_byte
        self.literal(at, node.end_byte - 1, fields, True)
        # "${A[@]}" of an empty list is no word.
        fields.open |= not re.fullmatch(rb'"\$(\{\w+\[@\]\}|@|\{@\})"', node.text)

    def unknown(self, node, fields, text=""):
        text = text or self.text_of(node)
        self.effects(node)
        self.charge(len(text), self.line_of(node))
        fields.add(Piece(shown(text), self.line_of(node), shown(text)))

    def effects(self, node):
        """What a part that is not looked into may assign."""
        text = self.text_of(node)
        for match in DEFAULTS.finditer(text):
            self.assign(match[1], ((Piece("$" + match[1], self.line_of(node), shown(text)),),))
        if "((" in text:
            self.forget_assigned(text, self.line_of(node))

    def forget_assigned(self, text, line):
        for match in ASSIGNS.finditer(text):
            name = match[1] or match[2]
            self.assign(name, ((Piece("$" + name, line, shown(text)),),))

    def look_up(self, name):
        """(value, lists); None: no one in the script sets it."""
        arguments = self.state.arguments
        if name.isdigit() and name != "0":
            if arguments is None:
                return None, False
            return tuple(arguments[int(name) - 1 : int(name)]), False
        if name in ("@", "*"):
            return (None if arguments is None else tuple(arguments)), True
        return self.state.values.get(name), False

    def parameter(self, node, inner, fields, quoted, splits):
        """$NAME, and ${…} with `inner`."""
        form = re.fullmatch(rf"({NAME}|\d+|[@*])(?:\[([@*]|\d+)\])?((:?)([-=?+]).*)?", inner, re.S)
        if not form:
            return self.unknown(node, fields)
        name, index, operation, colon, does = form.groups()
        value, lists = self.look_up(name)
        if index and index.isdigit() and value is not None:
            value = value[int(index) : int(index) + 1]
        lists = lists or index in ("@", "*")
        if value is None and (self.state.unknown or not operation or does in "?+"):
            return self.undetermined(node, name, operation, fields)
        known = value is None or all(is_known(text) for text in value)
        empty = not value or bool(colon and known and not any(plain(text) for text in value))
        if does == "+" and not known:
            return self.unknown(node, fields)
        if does in ("-", "=", "+") and empty != (does == "+"):
            assumed = self.assumed
            self.assumed = assumed or (name if value is None else "")
            self.default(node, name, does, fields, quoted, splits)
            self.assumed = assumed
        elif does != "+":
            self.put(value, node, fields, quoted, splits, "*" if "*" in (name, index) else lists)

    def undetermined(self, node, name, operation, fields):
        if not operation or self.state.unknown:
            text = "$" + name
            why = self.state.unknown or text
            fields.add(Piece(text, self.line_of(node), why))
        else:
            self.unknown(node, fields, "$" + name if operation.lstrip(":")[0] == "?" else "")

    def default(self, node, name, does, fields, quoted, splits):
        """The word after ${NAME:-"""
        children = node.children
        at = next(i for i, c in enumerate(children) if re.fullmatch(":?[-=?+]", c.type))
        words = [child for child in children[at + 1 :] if child.type != "}"]
        if does == "=":
            self.assign(name, (self.one(words),))
        for word in words:
            self.expand(word, fields, quoted, splits, splits and not quoted)

    def put(self, value, node, fields, quoted, splits, lists):
        """lists: of several elements each is a word; "*": within quotes one word of all."""
        value = value if lists else value[:1]
        for i, text in enumerate(value):
            if i and quoted and lists == "*":
                fields.add(Piece(" ", self.line_of(node)))
            elif i:
                fields.cut()
            fields.open |= quoted
            self.charge(len(plain(text)) + 1, self.line_of(node))
            for piece in text:
                if splits and not quoted and "IFS" in self.state.values:
                    piece = piece._replace(why=piece.why or "IFS, which the script sets")
                fields.pattern |= splits and bool(re.search(r"[*?]|\[[^]]+\]", piece.text))
                fields.add(piece, splits and not quoted)

    def arithmetic_expansion(self, node, fields):
        value = self.arithmetic(node.text.strip()[3:-2].decode(errors="replace"), node)
        if value is None:
            return self.unknown(node, fields)
        fields.add(Piece(value, self.line_of(node), "", self.assumed))

    def arithmetic(self, text, node):
        """Its value, or None; assignments are made."""
        line = self.line_of(node)

        def known(name):
            value, _ = self.look_up(name)
            if value and is_known(value[0]) and not any(piece.assumed for piece in value[0]):
                return plain(value[0])
            return None

        expanded = re.sub(
            rf"\$({NAME}|\d+)|\$\{{({NAME}|\d+)\}}",
            lambda match: known(match[1] or match[2]) or match[0],
            text,
        )
        form = re.fullmatch(rf"\s*({NAME})\s*(?:([-+*/%]?)=(?!=)(.*)|(\+\+|--)\s*)", expanded, re.S)
        if not form:
            form = re.fullmatch(rf"\s*(?:(\+\+|--)\s*)({NAME})()()\s*", expanded)
            form = form and (form[0], form[2], "", "", form[1])
        if not form:
            self.forget_assigned(expanded, line)
            return calculated(expanded, known)
        name, sign, right, step = form[1], form[2] or "", form[3] or "", form[4]
        old = calculated(name, known)
        right = f"{name}{step[0]}1" if step else f"{name}{sign}({right})" if sign else right
        value = calculated(right, known)
        if value is None:
            self.forget_assigned(expanded, line)
            self.assign(name, ((Piece("$" + name, line, shown(text)),),))
            return None
        self.assign(name, ((Piece(value, line),),))
        return old if step and expanded.strip().endswith(step) else value

    def assign(self, name, value, appends=False, is_list=False, index=None):
        state = self.state
        if name in state.readonly:
            return
        line = next((piece.line for text in value for piece in text), 0)
        self.charge(sum(len(plain(text)) + 1 for text in value), line)
        if name in state.odd:
            return state.forget(name, f"${name}, which bash computes", line)
        base = state.values.get(name)
        if base is None and appends:
            if state.unknown:
                return state.forget(name, state.unknown, line)
            base = ()
            value = tuple(
                tuple(piece._replace(assumed=piece.assumed or name) for piece in text)
                for text in value
            )
        if index is not None:
            base = base or ()
            if appends or is_list or not index.isdigit() or int(index) > len(base):
                return state.forget(name, f"${name}, an element of which is assigned", line)
            at = int(index)
            value = (*base[:at], *(value or ((),)), *base[at + 1 :])
        elif appends and is_list:
            value = (*base, *value)
        elif appends:
            first = base[0] if base else ()
            value = ((*first, *(value[0] if value else ())), *base[1:])
        elif not is_list and base is not None and len(base) > 1:
            value = (*value, *base[1:])  # of a list its first element
        state.values[name] = value
