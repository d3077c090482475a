#!/usr/bin/env python3
"""`cmake --install`, and a project outside the tree that finds what it installed."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from cli_case import SOURCE

BUILD = pathlib.Path(os.environ.get("TRELLIS_BUILD", SOURCE / "build/release"))


def run(*command, **kwargs):
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, **{"timeout": 120, **kwargs}
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


class Install(unittest.TestCase):
    def test_a_project_outside_the_tree_finds_it(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix, build = pathlib.Path(folder) / "prefix", pathlib.Path(folder) / "build"
            run("cmake", "--install", BUILD, "--prefix", prefix)
            # Moved: nothing of it names the place where it was installed.
            prefix = prefix.rename(pathlib.Path(folder) / "moved")
            environment = {**os.environ, "CMAKE_BUILD_TYPE": "Release"}
            run(
                *("cmake", "-G", "Ninja", "-S", SOURCE / "tests/install", "-B", build),
                f"-DCMAKE_PREFIX_PATH={prefix}",
                env=environment,
            )
            run("cmake", "--build", build)
            self.assertIn("neuron trellis-emulator", run(build / "asks_the_device"))
            self.a_model_of_ones_own(prefix, pathlib.Path(folder) / "mine")
            program = pathlib.Path((build / "program.txt").read_text())
            self.assertTrue(program.is_relative_to(prefix))
            elsewhere = {"cwd": folder, "env": {**os.environ, "TRELLIS_CACHE": "off"}}
            document = json.loads(run(program, "describe", "trn2.48xlarge", "--json", **elsewhere))
            self.assertEqual(document["schema"], "trellis.describe/1")
            run(
                *(program, "simulate", prefix / "share/trellis/examples/quickstart.yaml"),
                *("trainer.max_steps=1", f"exp_manager.explicit_log_dir={folder}/run"),
                **elsewhere,
            )
            self.assertTrue((pathlib.Path(folder) / "run/report.json").exists())
            run(
                *(program, "train", prefix / "share/trellis/examples/quickstart.yaml"),
                *("--device", "cpu", "--device-plugin", "torch_device", "trainer.max_steps=1"),
                f"exp_manager.explicit_log_dir={folder}/measured",
                **elsewhere,
            )
            report = json.loads((pathlib.Path(folder) / "measured/report.json").read_text())
            self.assertIn("trellis-torch-device", report["measured"]["provider"])

    def a_model_of_ones_own(self, prefix, folder):
        """Two lines of CMake in an empty folder."""
        folder.mkdir()
        shutil.copy(SOURCE / "examples/custom_model/custom_model.cpp", folder / "main.cpp")
        lines = [
            "cmake_minimum_required(VERSION 3.25)",
            "project(mine LANGUAGES CXX)",
            "add_executable(mine main.cpp)",
            "find_package(trellis REQUIRED)",
            "target_link_libraries(mine PRIVATE trellis::nxd)",
        ]
        (folder / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
        build = folder / "build"
        run("cmake", "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", build, timeout=600)
        self.assertRegex(run(build / "mine"), r"loss \d\.\d+ in step 1, \d\.\d+ in step 60")


if __name__ == "__main__":
    unittest.main()
