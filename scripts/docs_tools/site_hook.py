"""A hook of MkDocs (mkdocs.yml): pages that are written when the site is built, and lie nowhere."""

import os
import pathlib
import sys
import tempfile

from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from docs_tools import commands, generated  # noqa: E402


def on_files(files, config):
    program = os.environ.get("TRELLIS", commands.SOURCE / "build/release/bin/trellis")
    with tempfile.TemporaryDirectory() as folder:
        pages = generated.site_pages(commands.Workplace(folder, program, folder))
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files
