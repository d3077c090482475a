"""Builds the wheel of trellis_neuron (PEP 517) from this folder and a finished build of the source tree; needs no other package.

The wheel holds the Python files, the shared libraries, the hardware descriptions, and the libraries that a machine without Trellis' build
dependencies lacks. Environment: TRELLIS_NEURON_LIBRARY, the device's library (default: build/release/lib).
"""

import base64
import hashlib
import importlib.util
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
PACKAGE = "trellis_neuron"
BUNDLED = re.compile(r"lib(systemc|yaml-cpp|spdlog|fmt|xxhash)\b")  # as named by the loader
TAG = f"py3-none-linux_{platform.machine()}"


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("trellis_neuron is built from the whole source tree: build a wheel with scripts/python-package")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    stem = f"{PACKAGE}-{project['version']}"
    name = f"{stem}-{TAG}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        record = []
        for path, content in [*_package_files(), *_metadata(project, f"{stem}.dist-info")]:
            _add(wheel, record, path, content)
        record.append(f"{stem}.dist-info/RECORD,,")
        _write(wheel, f"{stem}.dist-info/RECORD", "\n".join(record) + "\n")
    return name


def _package_files():
    """(path in the wheel, content), in a fixed order."""
    for file in sorted((HERE / PACKAGE).glob("*.py")):
        yield f"{PACKAGE}/{file.name}", file.read_bytes()
    for file in _libraries():
        yield f"{PACKAGE}/lib/{file.name}", file.read_bytes()
    configs = SOURCE / "sim/configs"
    for file in sorted(configs.glob("*.yaml")):
        yield f"{PACKAGE}/share/trellis/configs/{file.name}", file.read_bytes()
    for file in sorted((SOURCE / "sim/config/calibration").glob("*.yaml")):
        yield f"{PACKAGE}/share/trellis/configs/calibration/{file.name}", file.read_bytes()


def _libraries():
    find = _find_library()
    ours = [find(name) for name in ("libtrellis_neuron.so", "libtrellis_c10d.so")]
    bundled = {}
    for library in ours:
        for line in subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout.splitlines():
            needed, _, place = line.strip().partition(" => ")
            if BUNDLED.match(needed):
                bundled[needed] = Path(place.split(" (")[0])
    yield from ours
    for needed, place in sorted(bundled.items()):
        yield _Named(needed, place)


class _Named:
    """A file that goes by the name under which the loader looks for it."""

    def __init__(self, name, place):
        self.name, self.read_bytes = name, place.read_bytes


def _find_library():
    """The package's own rule, taken from its file: importing the package would load torch."""
    source = (HERE / PACKAGE / "_find.py").resolve()
    spec = importlib.util.spec_from_file_location("_find", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find


def _metadata(project, folder):
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {each}" for each in project["dependencies"]),
    ]
    yield f"{folder}/METADATA", "\n".join(lines) + "\n"
    yield f"{folder}/WHEEL", f"Wheel-Version: 1.0\nGenerator: {PACKAGE}\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    entries = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in project["entry-points"].items()]
    yield f"{folder}/entry_points.txt", "\n".join(entries)
    yield f"{folder}/top_level.txt", f"{PACKAGE}\n"


def _add(wheel, record, path, content):
    data = content.encode() if isinstance(content, str) else content
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    _write(wheel, path, data)
    record.append(f"{path},sha256={digest},{len(data)}")


def _write(wheel, path, data):
    info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # equal inputs make equal wheels
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)
