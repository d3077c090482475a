"""Renders chat templates as transformers' apply_chat_template does, for the program that starts it.

Lines of JSON on stdin and stdout. The first: {"template": text, "special": {name: text}}; then one
line for each request: {"chats": [{"messages": […], "tools": […] or null, "add_generation_prompt":
true}]} → {"chats": [{"text": text, "generated": [[begin, end], …]}]}, ranges of bytes inside
{% generation %} blocks. A mistake is {"error": text}. Templates are programs of strangers: they run
in Jinja's sandbox, and the program that reads this ends what does not end.
"""

import json
import os
import re
import resource
import sys
from datetime import datetime, timezone

MOST_BYTES = 4 << 30  # of address space
REASONING = ("reasoning_content", "thinking", "reasoning")


def say(answer):
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()


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


def byte_ranges(text, ranges):
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in ranges]


def render(environment, template, special, chat):
    environment.generated, environment.blocks = [], []
    context = template.new_context(
        {
            **special,
            "messages": [with_reasoning(message) for message in chat["messages"]],
            "tools": chat["tools"],
            "documents": None,
            "add_generation_prompt": chat["add_generation_prompt"],
        }
    )
    for block in template.root_render_func(context):
        environment.blocks.append(block)
    text = "".join(environment.blocks)
    return {"text": text, "generated": byte_ranges(text, environment.generated)}


def one_line(error):
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    start = json.loads(sys.stdin.readline())
    try:
        environment = make_environment()
    except ImportError as error:
        return say({"error": f"{sys.executable} has no jinja2 ({error})"})
    try:
        template = environment.from_string(start["template"])
    except Exception as error:  # whatever it is, the template is at fault
        line = getattr(error, "lineno", None)
        return say({"error": one_line(error) + (f" (line {line})" if line else "")})
    say({"chats": []})
    for line in sys.stdin:
        try:
            chats = json.loads(line)["chats"]
            answers = [render(environment, template, start["special"], chat) for chat in chats]
            say({"chats": answers})
        except Exception as error:
            say({"error": one_line(error)})


main()
