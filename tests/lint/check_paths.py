"""Paths that documents name exist. Usage: check_paths.py ROOT

Checked in every .md but the changelog: texts in backticks with a slash whose first part is a
folder of the tree, or that name a file (x.h, x.cpp, x.py, x.md).
Also checked: paths of files in the text of sources outside tests/, and links of README.md files,
which are read without the site and its generated pages.
`name.*`, `{a,b}` and `*` stand for any of them; a path may start at the root or at the document's
folder. Placeholders (<name>, …) are left out.
"""

import re
from pathlib import PurePosixPath

from source_tree import FOLDERS, files, lines, main

CODE = re.compile(r"`([^`\s]+)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
PATH = re.compile(r"[\w./*{},+-]+")
OURS = (".h", ".cpp", ".py", ".md", ".cmake", ".in", ".js")
IN_SOURCE = re.compile(rf"(?<![\w/.<$}}])(?:{'|'.join(FOLDERS)})/[\w/]+\.(?:h|cpp|py|md|yaml)\b")
NOT_IN_TREE = re.compile(r"^(build|dist|\.venv)/|^(torch|ATen|c10)/|^trellis\.|^\.")


def spellings(text):
    """`a.{h,cpp}` as a.h and a.cpp; `a.*` and a folder's slash as they are."""
    if match := re.fullmatch(r"(.*?)\{([^{}]*)\}(.*)", text):
        return [match[1] + part + match[3] for part in match[2].split(",")]
    return [text]


def is_path(text):
    """Whether a text in backticks claims to be a path of the tree."""
    if not PATH.fullmatch(text) or NOT_IN_TREE.search(text):
        return False
    if "/" in text:
        return text.split("/")[0] in FOLDERS or text.endswith(OURS)
    return text.endswith((*OURS, "}")) and "." in text and not text.startswith("*")


def source_problems(root):
    for path in files(root, (".h", ".cpp", ".py", ".yaml", ".cmake", "CMakeLists.txt")):
        if path.startswith("tests/"):
            continue
        for number, line in enumerate(lines(root, path), 1):
            for text in [] if "#include" in line else IN_SOURCE.findall(line):
                if not (root / text).exists():
                    yield f"{path}:{number}: there is no {text}"


def link_problems(root, document):
    for number, line in enumerate(lines(root, document), 1):
        for target in LINK.findall(CODE.sub("", line)):
            if not ((root / document).parent / target).exists():
                yield f"{document}:{number}: a link to {target}, which is not there"


def check(root):
    yield from source_problems(root)
    documents = [
        name
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
        if (root / name).exists()
    ] + files(root, (".md",))
    names = {PurePosixPath(path).name for path in files(root, ("",))} | {
        path.name for path in root.iterdir()
    }

    def exists(folder, text):
        if "/" not in text:
            return text in names
        return any(
            any(start.glob(text.rstrip("/"))) or any(start.glob(text + ".*"))
            for start in (root, folder)
        )

    for document in documents:
        if document.endswith("README.md"):
            yield from link_problems(root, document)
        folder = (root / document).parent
        for number, line in enumerate(lines(root, document), 1):
            for text in CODE.findall(line):
                text = text.rstrip(":,")
                if is_path(text) and not all(
                    exists(folder, spelling) for spelling in spellings(text)
                ):
                    yield f"{document}:{number}: there is no {text}"


if __name__ == "__main__":
    main(check)
