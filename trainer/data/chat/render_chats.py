"""Renders chat templates as transformers' apply_chat_template does, for the program that starts it.

Lines of JSON on stdin. The first: {"template": text, "special": {name: text}}; then one for each
record: {"messages": […], "tools": […] or null, "chats": [{"turns": [[begin, end], …],
"add_generation_prompt": true}, …]}, each chat being ranges of the record's messages. Answers on
stdout are a line with their length in bytes, a line of JSON, and texts: {"chats": [[begin, end,
[[begin, end], …]], …]}. A chat's text is a range of the texts' bytes, the first chat's when that
begins with it; then come ranges of that text's bytes that are inside {% generation %} blocks. A
mistake is {"error": text}. Templates are programs of strangers: they run in Jinja's sandbox, and
the program that reads this ends what does not end.
"""

import json
import os
import re
import resource
import sys
from datetime import datetime, timezone

MOST_BYTES = 4 << 30  # of address space
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


def strftime_now(form):
    # Builds that must repeat name their day.
    day = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.fromtimestamp(int(day), timezone.utc) if day else datetime.now()
    return now.strftime(form)


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


def make_environment():
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


class Renderer:
    def __init__(self, template, special):
        self.environment = make_environment()
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
        for block in self.template.root_render_func(self.template.new_context(names, shared=True)):
            environment.blocks.append(block)
        return "".join(environment.blocks), environment.generated

    def answer(self, record):
        messages = [with_reasoning(message) for message in record["messages"]]
        first, texts, chats = None, b"", []
        for chat in record["chats"]:
            turns = [message for begin, end in chat["turns"] for message in messages[begin:end]]
            text, ranges = self.render(turns, record["tools"], chat["add_generation_prompt"])
            as_bytes = text.encode()
            begin = 0 if first is not None and first.startswith(text) else len(texts)
            if begin == len(texts):
                texts += as_bytes
            first = text if first is None else first
            generated = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in ranges]
            chats.append([begin, begin + len(as_bytes), generated])
        return {"chats": chats}, texts


def one_line(error):
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    start = json.loads(sys.stdin.buffer.readline())
    try:
        renderer = Renderer(start["template"], start["special"])
    except ImportError as error:
        return say({"error": f"{sys.executable} has no jinja2 ({error})"})
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
