"""Renders chat templates as transformers' apply_chat_template does, for the program that starts it.

Lines of JSON on stdin. After the first answer, which says that Python is ready, comes {"template":
text, "special": {name: text}, "now": [seconds, offset from UTC]}; then one line for each record:
{"messages": […], "tools": […] or null, "chats": [{"turns": [[begin, end], …],
"add_generation_prompt": true, "marks": true}, …]}, each chat being ranges of the record's messages.
Answers on stdout are a line with their length in bytes, a line of JSON, and texts: {"chats":
[[begin, end, [[begin, end], …], [[begin, end] or null, …]], …]}. A chat's text is a range of the
texts' bytes, the first chat's when that begins with it; then come ranges of that text's bytes that
are inside {% generation %} blocks, and with "marks" for each message the range that the assistant's
words are. A mistake is {"error": text}. Templates are programs of strangers: they run in Jinja's
sandbox, without variables of the environment, files and processes, with a limit of memory and of
text; and the program that reads this ends what does not end.
"""

import json
import re
import resource
import sys
from datetime import datetime, timedelta, timezone

MOST_BYTES = 512 << 20  # of address space; the program starts at most 16 of these
MOST_TEXT = 64 << 20  # of a record, in characters
LEAST_JINJA = (3, 1, 6)  # those before let templates leave the sandbox
FIRST_MARK = 0xF0000  # of a plane that Unicode leaves to private use
REASONING = ("reasoning_content", "thinking", "reasoning")


def say(document, texts=b""):
    line = json.dumps(document).encode() + b"\n"
    sys.stdout.buffer.write(b"%d\n" % (len(line) + len(texts)) + line + texts)
    sys.stdout.buffer.flush()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message):
    import jinja2

    raise jinja2.exceptions.TemplateError(message)


def clock(started, offset):
    """strftime_now: a template asks for the day."""

    def strftime_now(form):
        seconds = datetime.now(timezone.utc).timestamp() if started is None else started
        now = datetime.fromtimestamp(seconds, timezone(timedelta(seconds=offset)))
        return now.replace(tzinfo=None).strftime(form)

    return strftime_now


def generation_blocks(jinja2):
    class Generation(jinja2.ext.Extension):
        """{% generation %} … {% endgeneration %}: marks what the assistant wrote."""

        tags = {"generation"}

        def __init__(self, environment):
            super().__init__(environment)
            environment.extend(generated=None, blocks=None)

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_mark")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        @jinja2.pass_eval_context
        def _mark(self, context, caller):
            text = caller()
            if self.environment.blocks is not None:
                begin = len("".join(self.environment.blocks))
                self.environment.generated.append((begin, begin + len(text)))
            return text

    return Generation


def restricted_types(jinja2):
    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            self, args = args[0], args[1:]
            attributes = dict(*args, **kwargs)
            for name in attributes:
                Namespace.check_name(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name, value):
            Namespace.check_name(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check_name(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")

    return Dict(), Namespace


def import_jinja():
    """With what it would import only when it is asked for, because files cannot be opened then."""
    import pprint  # noqa: F401
    import textwrap  # noqa: F401

    import jinja2
    import jinja2.constants
    import jinja2.debug
    import jinja2.ext
    import jinja2.sandbox

    numbers = tuple(int(number) for number in re.findall(r"\d+", jinja2.__version__)[:3])
    if numbers < LEAST_JINJA:
        least = ".".join(map(str, LEAST_JINJA))
        raise ImportError(
            f"jinja2 {jinja2.__version__} lets templates leave its sandbox: expected {least} or "
            f"newer; install it with {sys.executable} -m pip install 'jinja2>={least}'"
        )
    datetime.now().strftime("%d %b %Y")
    # The reader of templates decodes texts with escapes; codecs are files too.
    jinja2.sandbox.SandboxedEnvironment().from_string(r"{{ '\n\u00e9' }}").render()


def shut_in():
    """No memory beyond a limit, and no file, no process, no core dump from here on."""
    for what, most in (
        (resource.RLIMIT_AS, MOST_BYTES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def make_environment(strftime_now):
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[generation_blocks(jinja2), jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"], environment.globals["namespace"] = restricted_types(jinja2)
    return environment


def with_reasoning(message):
    """The names under which templates read what a model thought."""
    message = {key: value for key, value in message.items() if value is not None}
    thought = next((message[key] for key in REASONING if key in message), None)
    if thought is None:
        return message
    return {"thinking": thought, **message, "reasoning_content": thought}


class Marks:
    """Two characters around what each of the assistant's messages says."""

    def __init__(self, messages):
        self.kept = "".join(map(chr, range(FIRST_MARK, FIRST_MARK + 2 * len(messages))))
        self.pattern = re.compile(f"[{self.kept}]") if self.kept else re.compile(r"(?!)")
        if self.pattern.search(json.dumps(messages, ensure_ascii=False)):
            raise ValueError("the record has characters of the plane U+F0000 …")
        self.messages = [self.marked(message, i) for i, message in enumerate(messages)]

    def marked(self, message, i):
        if message.get("role") != "assistant":
            return message
        begin, end = self.kept[2 * i], self.kept[2 * i + 1]
        content, calls = message.get("content"), message.get("tool_calls")
        message = dict(message)
        if isinstance(content, str) and content.strip():
            message["content"] = self.around(content, begin, end)
        elif isinstance(content, list):
            message["content"] = [self.marked_part(part, begin, end) for part in content]
        if isinstance(calls, list) and calls and isinstance(calls[-1], dict):
            call = dict(calls[-1])
            inner = dict(call["function"]) if isinstance(call.get("function"), dict) else call
            if isinstance(inner.get("name"), str):
                inner["name"] = begin + inner["name"] + end
            message["tool_calls"] = [
                *calls[:-1],
                {**call, "function": inner} if inner is not call else call,
            ]
        return message

    def marked_part(self, part, begin, end):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            return part
        return {**part, "text": self.around(part["text"], begin, end)}

    @staticmethod
    def around(text, begin, end):
        """Spaces stay outside, where a template finds them; what follows a thought has a separate
        mark, because templates leave thoughts out."""
        bare = text.strip()
        if not bare:
            return text
        at = text.index(bare)
        thought, close, rest = bare.rpartition("</think>")
        if close and rest.strip():
            said = rest.lstrip()
            bare = thought + close + rest[: len(rest) - len(said)] + begin + said
        return text[:at] + begin + bare + end + text[at + len(text.strip()) :]

    def take(self, text):
        """The text without marks, and the range of each message; None where a mark is missing."""
        begins, ends, parts, place, size = {}, {}, [], 0, 0
        for match in self.pattern.finditer(text):
            parts.append(text[place : match.start()])
            size += match.start() - place
            place = match.end()
            mark = ord(match.group()) - FIRST_MARK
            begins.setdefault(mark // 2, size) if mark % 2 == 0 else ends.update({mark // 2: size})
        parts.append(text[place:])
        said = [
            (begins[i], ends[i]) if i in begins and ends.get(i, -1) >= begins[i] else None
            for i in range(len(self.messages))
        ]
        return "".join(parts), said


def in_bytes(text, pair):
    return [len(text[:place].encode()) for place in pair]


class Renderer:
    def __init__(self, template, special, now):
        self.environment = make_environment(clock(*now))
        self.template = self.environment.from_string(template)
        self.names = {**self.template.globals, **special, "documents": None}

    def render(self, messages, tools, add_generation_prompt):
        """A text, and the ranges of its characters that are generated."""
        environment = self.environment
        environment.generated, environment.blocks = [], []
        names = {
            **self.names,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        # Shared: `names` has the globals, and the template need not merge them again.
        size = 0
        for block in self.template.root_render_func(self.template.new_context(names, shared=True)):
            environment.blocks.append(block)
            size += len(block)
            if size > MOST_TEXT:
                raise ValueError(f"its text is longer than {MOST_TEXT} characters")
        return "".join(environment.blocks), environment.generated

    def answer(self, record):
        messages = [with_reasoning(message) for message in record["messages"]]
        first, texts, chats = None, b"", []
        for chat in record["chats"]:
            turns = [message for begin, end in chat["turns"] for message in messages[begin:end]]
            marks = Marks(turns) if chat["marks"] else None
            text, ranges = self.render(
                marks.messages if marks else turns, record["tools"], chat["add_generation_prompt"]
            )
            text, said = marks.take(text) if marks else (text, [])
            as_bytes = text.encode()
            begin = 0 if first is not None and first.startswith(text) else len(texts)
            if begin == len(texts):
                texts += as_bytes
            first = text if first is None else first
            if len(texts) > MOST_TEXT:
                raise ValueError(f"its texts are longer than {MOST_TEXT} bytes")
            generated = [in_bytes(text, pair) for pair in ranges] if marks is None else []
            said = [pair and in_bytes(text, pair) for pair in said]
            chats.append([begin, begin + len(as_bytes), generated, said])
        return {"chats": chats}, texts


def one_line(error):
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()


def main():
    try:
        import_jinja()
    except ModuleNotFoundError as error:
        return say({"error": f"{sys.executable} has no jinja2 ({error})"})
    except ImportError as error:
        return say({"error": str(error)})
    shut_in()
    say({"chats": []})
    start = json.loads(sys.stdin.buffer.readline())
    try:
        renderer = Renderer(start["template"], start["special"], start["now"])
    except Exception as error:  # whatever it is, the template is at fault
        line = getattr(error, "lineno", None)
        return say({"error": one_line(error) + (f" (line {line})" if line else "")})
    say({"chats": []})
    for line in sys.stdin.buffer:
        try:
            answer = renderer.answer(json.loads(line))
        except Exception as error:
            answer = ({"error": one_line(error)},)
        say(*answer)


main()
