"""Chat templates against transformers' apply_chat_template: ten shapes of public templates, with
tools, system turns and odd texts; templates that do not parse, refuse, or do not end."""

import json
import os
import pathlib
import random
import re
import shutil
import sys
import time
import unittest

import jinja2
import markupsafe
from probe import Case, probe
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}\
{% endif %}{% endfor %}"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + \
message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\
{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and false %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- This block extracts the system message. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to the following functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ \
message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{{ bos_token }}{% set ns = namespace(system='', seen=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- set ns.system = message.content + '\\n\\n' %}
    {%- elif message.role == 'user' %}{% set ns.seen = ns.seen + 1 %}
        {%- if loop.last and tools %}{{ '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}{% set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != 'return' %}
                    {%- if val is string %}{{ '"' + key + '": "' + val + '"' }}
                    {%- else %}{{ '"' + key + '": ' + val|tojson }}{% endif %}
                    {%- if not loop.last %}{{ ', ' }}{% endif %}
                {%- endfor %}{{- '}}' }}{% if not loop.last %}{{ ', ' }}{% endif %}
            {%- endfor %}{{ '][/AVAILABLE_TOOLS]' }}
        {%- endif %}{{ '[INST] ' + (ns.system if ns.seen == 1 else '') + \
message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}
            {%- set out = call.function|tojson %}{{ out[:-1] }}{{ ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{ ', ' }}{% else %}{{ ']' + eos_token }}{% endif %}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}{{ ' ' + message.content|trim + eos_token }}
    {%- elif message.role in ['tool', 'tool_results'] %}
        {%- set content = message.content.content if message.content.content is defined \
else message.content %}{{ '[TOOL_RESULTS] {"content": ' + content|string + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{%- set first = messages[0]['content'] + '\n\n' -%}{%- set messages = messages[1:] -%}{% else %}\
{%- set first = '' -%}{% endif %}{% for message in messages %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + \
(first if loop.first else '') }}{% if message['content'] is string %}\
{{ message['content'] | trim }}{% else %}{% for item in message['content'] %}\
{% if item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}\
{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}\
{% endif %}"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}\
{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}\
{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}\
{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nThey are within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or \
(message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

HERMES = """{%- macro json_to_python_type(spec) %}
    {%- set basic = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
    {%- if basic[spec.type] is defined %}
        {{- basic[spec.type] }}
    {%- elif spec.type == "array" %}
        {{- "list[" + json_to_python_type(spec.items) + "]" }}
    {%- else %}
        {{- "Any" }}
    {%- endif %}
{%- endmacro %}
{{- bos_token }}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools or [] %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- tool.name + '(' }}
    {%- for name, fields in tool.parameters.properties.items() %}
        {{- name + ': ' + json_to_python_type(fields) }}
        {%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {{- ')\\n' }}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {%- if loop.index > 40 %}{% break %}{% endif %}
    {%- if message.reasoning_content is defined %}
        {{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content or '' }}{{- '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- '<' + message.role.upper() + '>' + message.content }}
    {%- endif %}
{%- endfor %}
"""

SHAPES = dict(
    chatml=CHATML,
    llama2=LLAMA2,
    llama3=LLAMA3,
    llama31=LLAMA31,
    mistral=MISTRAL,
    zephyr=ZEPHYR,
    gemma=GEMMA,
    phi3=PHI3,
    qwen=QWEN,
    hermes=HERMES,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'It\'s <b>hot</b> & "cold" in Köln? 🌱',
            "parameters": {
                "type": "object",
                "properties": {
                    "zone": {"type": "string", "description": "where"},
                    "at": {"type": "array", "items": {"type": "integer"}},
                    "limit": {"type": "number", "default": 1.5e-7},
                },
                "required": ["zone"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "sums",
            "parameters": {"type": "object", "properties": {"b": {"type": "boolean"}}},
        },
    },
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {
                "name": "weather",
                "arguments": {"zone": "Ürümqi", "at": [1, 2], "x": None},
            },
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "22.0"}
ODD = [
    "",
    "  two  ",
    "line\nbreak\r\n",
    "{{ x }} {% y %}",
    "<s>[INST]",
    "'\"\\",
    "漢字 🌱 \u2028",
    "\t",
]


def chats():
    """Plain ones, with a system turn, with tools, and random texts."""
    rng = random.Random(3)
    user, answer = {"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hey!"}
    system = {"role": "system", "content": "Be brief. "}
    result = []
    for head in ([], [system]):
        for turns in (1, 3, 5):
            messages = head + [user, answer] * (turns // 2) + [user]
            result += [dict(messages=messages, add_generation_prompt=True)]
            result += [dict(messages=messages + [answer])]
        result.append(dict(messages=head + [user, CALL, RESULT, answer, user], tools=TOOLS))
        result.append(dict(messages=head + [user], tools=TOOLS[:1], add_generation_prompt=True))
        result.append(dict(messages=head + [user, {**answer, "thinking": "so"}, user]))
    for _ in range(20):
        texts = ["".join(rng.choices(ODD, k=3)) for _ in range(4)]
        roles = ["user", "assistant", "user", "assistant"]
        messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
        result.append(dict(messages=messages))
    return result


class Templates(Case):
    def tokenizer(self, template):
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()),
            bos_token="<s>",
            eos_token="</s>",
            unk_token="<unk>",
        )
        tokenizer.chat_template = template
        tokenizer.save_pretrained(self.dir)
        return tokenizer

    def ours(self, some, **more):
        return probe(ask="chats", tokenizer=str(self.dir), chats=json.dumps(some), **more)

    def test_ten_shapes_are_byte_equal(self):
        for name, template in SHAPES.items():
            tokenizer = self.tokenizer(template)
            expected, accepted = [], []
            for chat in chats():
                try:
                    expected.append(
                        tokenizer.apply_chat_template(
                            chat["messages"],
                            tools=chat.get("tools"),
                            add_generation_prompt=chat.get("add_generation_prompt", False),
                            tokenize=False,
                        )
                    )
                    accepted.append(chat)
                except Exception:  # such as a role that the template does not know
                    self.refused("data.jsonl:7", "refuses this record", **self.asked([chat]))
            with self.subTest(name):
                self.assertGreater(len(accepted), 20)
                self.assertEqual([chat["text"] for chat in self.ours(accepted)], expected)

    def asked(self, some):
        return dict(ask="chats", tokenizer=str(self.dir), chats=json.dumps(some))

    def test_generation_blocks_are_byte_ranges(self):
        self.tokenizer(HERMES)
        messages = [{"role": "user", "content": "ä"}, {"role": "assistant", "content": "漢"}]
        (chat,) = self.ours([dict(messages=messages * 2)])
        marked = [chat["text"].encode()[a:b].decode() for a, b in chat["generated"]]
        self.assertEqual(marked, ["漢<|im_end|>"] * 2)

    def test_templates_by_name_in_the_configuration(self):
        self.tokenizer(CHATML)
        (self.dir / "chat_template.jinja").unlink()
        named = [
            {"name": "default", "template": "plain {{ messages[0].content }}"},
            {"name": "tool_use", "template": "tools {{ tools | length }}"},
        ]
        (self.dir / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        user = [{"role": "user", "content": "x"}]
        self.assertEqual(self.ours([dict(messages=user)])[0]["text"], "plain x")
        self.assertEqual(self.ours([dict(messages=user, tools=TOOLS)])[0]["text"], "tools 2")
        (self.dir / "tokenizer_config.json").write_text("{}")
        self.refused("no chat template", **self.asked([dict(messages=user)]))

    def test_a_template_that_does_not_parse_is_named(self):
        self.tokenizer("{% if x %}\n{{ y }")
        self.refused(
            "chat_template.jinja", "does not parse", "line 2", **self.asked([dict(messages=[])])
        )

    def test_a_template_that_does_not_end_is_ended(self):
        self.tokenizer(
            "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
        )
        start = time.monotonic()
        self.refused(
            "data.jsonl:7",
            "chat_template.jinja did not end within 700 ms",
            limit_ms=700,
            **self.asked([dict(messages=[])]),
        )
        self.assertLess(time.monotonic() - start, 30)

    def test_its_process_has_no_environment_files_or_endless_text(self):
        os.environ["SECRET_OF_THIS_TEST"] = "x"
        self.addCleanup(os.environ.pop, "SECRET_OF_THIS_TEST")
        # A sandbox that lets everything out shows what there is to be had.
        packages = self.dir / "packages"
        shutil.copytree(pathlib.Path(jinja2.__file__).parent, packages / "jinja2")
        shutil.copytree(pathlib.Path(markupsafe.__file__).parent, packages / "markupsafe")
        sandbox = packages / "jinja2" / "sandbox.py"
        sandbox.write_text(
            sandbox.read_text().replace(
                "class ImmutableSandboxedEnvironment(SandboxedEnvironment):",
                "class ImmutableSandboxedEnvironment(SandboxedEnvironment):\n"
                "    def __init__(self, *a, **k):\n"
                "        super().__init__(*a, **k)\n"
                "        import os, resource\n"
                "        self.globals.update(env=dict(os.environ), open=open, fork=os.fork, "
                "most=resource.getrlimit(resource.RLIMIT_NPROC)[0])\n",
            )
        )
        python = self.dir / "python3"
        code = f"import sys; sys.path.insert(0, {json.dumps(str(packages))}); exec(sys.argv.pop(1))"
        python.write_text(f"#!/bin/sh\nshift 2\nexec {sys.executable} -I -c '{code}' \"$@\"\n")
        python.chmod(0o755)
        os.environ["TRELLIS_PYTHON"] = str(python)
        self.addCleanup(os.environ.pop, "TRELLIS_PYTHON")
        self.tokenizer("{{ env | tojson }} {{ most }}")
        (chat,) = self.ours([dict(messages=[])])
        self.assertNotIn("SECRET", chat["text"])
        self.assertNotIn("PATH", chat["text"])
        self.assertTrue(chat["text"].endswith(" 0"), chat["text"])
        self.tokenizer("{{ open('/etc/passwd') }}")
        self.refused("Too many open files", **self.asked([dict(messages=[])]))

    def test_an_old_jinja_is_refused(self):
        packages = self.dir / "packages"
        shutil.copytree(pathlib.Path(jinja2.__file__).parent, packages / "jinja2")
        init = packages / "jinja2" / "__init__.py"
        init.write_text(re.sub(r'__version__ = "[^"]+"', '__version__ = "3.1.5"', init.read_text()))
        self.assertIn("3.1.5", init.read_text())
        python = self.dir / "python3"
        code = f"import sys; sys.path.insert(0, {json.dumps(str(packages))}); exec(sys.argv.pop(1))"
        python.write_text(f"#!/bin/sh\nshift 2\nexec {sys.executable} -I -c '{code}' \"$@\"\n")
        python.chmod(0o755)
        os.environ["TRELLIS_PYTHON"] = str(python)
        self.addCleanup(os.environ.pop, "TRELLIS_PYTHON")
        self.tokenizer("{{ 1 }}")
        self.refused("jinja2 3.1.5", "3.1.6 or newer", **self.asked([dict(messages=[])]))

    def test_a_text_without_end_is_no_wait(self):
        for template in (
            "{{ 'a' * (10 ** 9) }}",
            "{% for a in range(90000) %}{{ 'a' * 100000 }}{% endfor %}",
        ):
            self.tokenizer(template)
            start = time.monotonic()
            self.refused("refuses this record", **self.asked([dict(messages=[])]))
            self.assertLess(time.monotonic() - start, 20)

    def test_a_template_cannot_leave_the_sandbox(self):
        self.tokenizer(
            "{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}"
        )
        self.refused("SecurityError", **self.asked([dict(messages=[])]))
        self.tokenizer("{{ 'a' * (10 ** 11) }}")
        self.refused("refuses this record", "MemoryError", **self.asked([dict(messages=[])]))


if __name__ == "__main__":
    unittest.main()
