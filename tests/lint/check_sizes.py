"""Holds files, functions and lines small. Usage: check_sizes.py ROOT

Sources have up to 600 lines, READMEs up to 220, the changelog 60; functions up to 60; lines up to
100 columns. Tables are data: a braced list that a function keeps as `static const` or returns does
not count as its lines. In Markdown only prose counts: tables, blocks of code, links and comments
may be longer.
"""

import ast
import re

import lizard
from source_tree import files, lines, main

SOURCES = (".h", ".cpp", ".py", ".cmake", "CMakeLists.txt")
LIMITS = [
    (SOURCES, 600, "split it by what its parts are for"),
    (("README.md",), 220, "keep what a newcomer needs, and move the rest"),
    (("CHANGELOG.md",), 60, "say what a user of the release notices"),
]
FUNCTION = 60
COLUMNS = 100
TABLE = re.compile(r"\s*(static const(expr)? .*|return( [\w:<>]+)? ?)\{+")
LINK = re.compile(r"https?://|\]\(")


def table_lines(body):
    """How many lines of a C++ function are in tables: `static const … {` and `return {`."""
    count, inside, depth = 0, False, 0
    for line in body:
        text = re.sub(r'"(\\.|[^"\\])*"', "", line)
        if not inside and TABLE.match(text):
            inside, depth = True, 0
        if inside:
            depth += text.count("{") - text.count("}")
            inside = depth > 0
            count += inside
    return count


def may_have_a_long_function(content):
    """The formatter puts the brace that ends a function, or the class around it, at the line's
    start: most files have no such brace far enough from the one before, and need no parser."""
    ends = [-1, *(i for i, line in enumerate(content) if line.startswith("}")), len(content)]
    return any(end - begin > FUNCTION for begin, end in zip(ends, ends[1:], strict=False))


def cpp_functions(root, path):
    content = lines(root, path)
    if not may_have_a_long_function(content):
        return
    for function in lizard.analyze_file.analyze_source_code(path, "\n".join(content)).function_list:
        body = content[function.start_line - 1 : function.end_line]
        yield function.start_line, function.name, len(body) - table_lines(body)


def python_functions(root, path):
    for node in ast.walk(ast.parse("\n".join(lines(root, path)))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name, node.end_lineno - node.lineno + 1


def long_functions(root):
    kinds = (((".h", ".cpp"), cpp_functions), ((".py",), python_functions))
    for suffixes, functions in kinds:
        for path in files(root, suffixes):
            for number, name, count in functions(root, path):
                if count > FUNCTION:
                    text = f"{name} has {count} lines, at most {FUNCTION} are allowed"
                    yield f"{path}:{number}: {text}"


def prose(content):
    """(number, line) of a Markdown file without what may be long."""
    fenced = False
    for number, line in enumerate(content, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith(("|", "<!--")) and not LINK.search(line):
            yield number, line


def long_lines(root):
    sources = files(root, (*SOURCES, ".sh")) + files(root, ("",), ["scripts", ".ci"])
    documents = [path.name for path in sorted(root.glob("*.md"))] + files(root, (".md",))
    for path in sorted(set(sources)) + documents:
        content = lines(root, path)
        for number, line in prose(content) if path.endswith(".md") else enumerate(content, 1):
            if len(line) > COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS} are allowed"


def check(root):
    for suffixes, limit, advice in LIMITS:
        for path in files(root, suffixes) + [name for name in suffixes if (root / name).is_file()]:
            count = len(lines(root, path))
            if count > limit:
                yield f"{path}:{limit + 1}: {count} lines, at most {limit} are allowed: {advice}"
    yield from long_functions(root)
    yield from long_lines(root)


if __name__ == "__main__":
    main(check)
