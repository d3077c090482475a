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
            subprocess.run([python, "-m", "pip", "wheel", "--no-deps", "--no-index", "-q", "-w", folder, SOURCE / "device/python"], check=True,
                           env=environment)
            wheel = next(Path(folder).glob("trellis_neuron-*.whl"))
            names = zipfile.ZipFile(wheel).namelist()
            for name in ("lib/libtrellis_neuron.so", "lib/libtrellis_c10d.so", "share/trellis/configs/trn2.yaml"):
                self.assertIn(f"trellis_neuron/{name}", names)
            subprocess.run([python, "-m", "pip", "install", "--no-deps", "--no-index", "-q", wheel], check=True, env=environment)
            self.use(folder, python, environment)

    def use(self, folder, python, environment):
        """torch comes from the tests' own environment; the device from the installed package alone."""
        site = next(Path(folder, "venv").glob("lib/python3*/site-packages"))
        site.joinpath("torch_of_the_tests.pth").write_text(f"{TORCH_FOLDER}\n")
        environment = {k: v for k, v in environment.items() if not k.startswith("TRELLIS")}
        code = """
import torch                                             # brings the device: entry point torch.backends
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
        done = subprocess.run([python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "ok", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
