"""Writes a release's SBOM (CycloneDX 1.5) and its notes. Usage: release_facts.py VERSION FOLDER

The SBOM lists what the wheel contains and what it depends on. The notes are the version's section
of CHANGELOG.md, with the checksum of the wheel.
"""

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


LINKED_IN = ("libjemalloc-dev",)  # Debian packages of archives that the program contains


def debian_version(package):
    return subprocess.run(
        ["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=True
    ).stdout


def debian_package(library):
    """(name, version) of the Debian package that a bundled library came from; None for ours."""
    found = subprocess.run(
        ["dpkg-query", "-S", f"*/{library}"], capture_output=True, text=True, check=False
    ).stdout
    if not found:
        return None
    name = found.split(":")[0]
    return name, debian_version(name)


def debian_facts(name, version):
    return {"version": version, "purl": f"pkg:deb/debian/{name}@{version}"}


def library_component(path, data):
    component = {
        "type": "library",
        "name": Path(path).name,
        "hashes": [{"alg": "SHA-256", "content": sha256(data)}],
    }
    if package := debian_package(Path(path).name):
        component |= debian_facts(*package)
    return component


def sbom(version, wheel):
    components = []
    with zipfile.ZipFile(wheel) as files:
        for path in sorted(files.namelist()):
            if "/lib/" in path or "/bin/" in path:
                components.append(library_component(path, files.read(path)))
        for name in LINKED_IN:
            component = {"type": "library", "name": name}
            components.append(component | debian_facts(name, debian_version(name)))
        metadata = files.read(f"trellis_neuron-{version}.dist-info/METADATA").decode()
    for name, pinned in re.findall(r"^Requires-Dist: (\S+)==(\S+)$", metadata, re.MULTILINE):
        components.append(
            {
                "type": "library",
                "name": name,
                "version": pinned,
                "purl": f"pkg:pypi/{name}@{pinned}",
            }
        )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "trellis-neuron",
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": sha256(wheel.read_bytes())}],
            }
        },
        "components": components,
    }


def notes(version, wheel):
    text = (SOURCE / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## \[?{re.escape(version)}.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    return f"{section[0].strip()}\n\nsha256 of {wheel.name}: {sha256(wheel.read_bytes())}\n"


def main(version, folder):
    wheel = next(Path(folder).glob("*.whl"))
    (Path(folder) / "sbom.cdx.json").write_text(json.dumps(sbom(version, wheel), indent=1) + "\n")
    (Path(folder) / "RELEASE_NOTES.md").write_text(notes(version, wheel))


if __name__ == "__main__":
    main(*sys.argv[1:])
