#!python
"""The command `trellis` of the wheel: becomes the program inside the package, without importing it.

The program finds torch and pyarrow next to its package. Where they are installed elsewhere, such as
in the system's site-packages, the loader gets their folders.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = {"torch": "lib", "pyarrow": ""}  # package: folder of its libraries


def folder_of(package):
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"trellis: the package {package} is missing: pip install trellis-neuron brings it")
    return Path(spec.submodule_search_locations[0])


def main():
    ours = folder_of("trellis_neuron")
    elsewhere = [
        str(folder_of(package) / inside)
        for package, inside in LIBRARIES.items()
        if folder_of(package).parent != ours.parent
    ]
    if elsewhere:
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join(elsewhere + ([before] if before else []))
    program = str(ours / "bin" / "trellis")
    os.execv(program, ["trellis", *sys.argv[1:]])


main()
