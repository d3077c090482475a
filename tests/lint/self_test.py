"""Plants one fault after the other in a small legal tree and expects the check to report it. Usage:
self_test.py CHECK"""

import sys
import tempfile
from pathlib import Path

import check_checklist
import check_figures
import check_format
import check_layers
import check_map
import check_names
import check_paths
import check_sizes
import check_texts
import check_words

LEGAL = {
    "base/yaml.cpp": '#include "base/yaml.h"\n#include <yaml-cpp/yaml.h>\n',
    "base/yaml.h": "#pragma once\n#include <string>\n",
    "base/tree.cpp": '#include "base/tree.h"\n#include "base/yaml.h"\n',
    "base/tree.h": "#pragma once\n",
    "traces/timeline.h": '#pragma once\n#include "base/yaml.h"\n',
    "sim/sim.h": '#pragma once\n#include "sim/isa/program.h"\n',
    "sim/isa/program.h": '#pragma once\n#include "base/yaml.h"\n',
    "sim/systemc/engine.h": "#pragma once\n#include <systemc>\n#include "
    '<tlm_utils/simple_target_socket.h>\n#include "sim/isa/program.h"\n',
    "device/plugin.h": "#ifndef A\n#define A\n#endif\n",
    "device/driver/session.h": '#pragma once\n#include "sim/sim.h"\n',
    "device/compiler/lower.cpp": '#include "sim/isa/program.h"\n',
    "device/aten/kernel.cpp": "#include <ATen/ATen.h>\n#include <c10/core/Device.h>\n#include "
    '"device/driver/session.h"\n',
    "runtime/world.cpp": '#include <torch/torch.h>\n#include "device/plugin.h"\n',
    "trainer/config/run_config.h": "#pragma once\n",
    "analysis/report/table.h": '#pragma once\n#include "trainer/config/run_config.h"\n#include '
    '"device/kernels/a.h"\n',
    "trainer/app/run.cpp": '#include "analysis/report/table.h"\n',
    "trainer/trainer.h": '#pragma once\n#include <torch/nn/module.h>\n#include "runtime/world.h"\n',
    "tests/sim/systemc/engine_test.cpp": "#include <systemc>\n#include "
    '"sim/systemc/engine.h"\n#include "tests/support/a.h"\n',
    "tests/device/kernel_test.cpp": "#include <torch/torch.h>\n#include "
    '"device/driver/session.h"\n',
    "base/CMakeLists.txt": "trellis_library(base ROOM .)\n",
    "traces/CMakeLists.txt": "trellis_library(traces HDRS timeline.h DEPS trellis::base)\n",
    "sim/CMakeLists.txt": "trellis_library(sim_interface HDRS sim.h DEPS trellis::sim_isa)\n"
    "trellis_library(sim_isa ROOM isa HDRS isa/program.h DEPS trellis::base)\n"
    "# trellis_library(sim ROOM systemc)\n"
    "trellis_library(sim ROOM systemc HDRS systemc/engine.h DEPS trellis::sim_interface\n"
    "  trellis::systemc)\n",
    "device/CMakeLists.txt": "trellis_library(device_plugin HDRS plugin.h)\n"
    "trellis_library(compiler ROOM compiler DEPS trellis::sim_isa)\n"
    "trellis_library(kernels HDRS kernels/a.h DEPS trellis::compiler)\n"
    "set(parts driver/session.h)\n"
    "trellis_library(driver ROOM driver HDRS ${parts} DEPS trellis::compiler trellis::sim)\n"
    "trellis_library(aten ROOM aten TORCH DEPS trellis::driver)\n",
    "runtime/CMakeLists.txt": "trellis_library(runtime ROOM . TORCH DEPS trellis::traces)\n"
    "target_link_libraries(trellis_runtime PUBLIC trellis::device_plugin)\n",
    "trainer/CMakeLists.txt": "trellis_library(trainer_config ROOM config\n"
    "  HDRS config/run_config.h\n"
    "  DEPS trellis::base)\n"
    "file(GLOB sources *.cpp)\n"
    "trellis_library(trainer SRCS ${sources} HDRS trainer.h TORCH DEPS trellis::runtime)\n"
    "trellis_library(trainer_app ROOM app TORCH DEPS trellis::trainer trellis::report)\n",
    "analysis/CMakeLists.txt": "trellis_library(report ROOM report HDRS report/table.h\n"
    "  DEPS trellis::trainer_config trellis::kernels)\n",
    "tests/base/CMakeLists.txt": "trellis_tests(base DEPS trellis::base UNITS yaml)\n",
    "tests/sim/CMakeLists.txt": "trellis_tests(sim DEPS trellis::sim UNITS systemc/engine)\n",
    "tests/device/CMakeLists.txt": "trellis_test(device/kernel TORCH DEPS trellis::driver)\n",
    "CONTRIBUTING.md": "## Words\n| write | not |\n|---|---|\n| transposed | turned |\n| its "
    "own | of its own |\n## More\n",
    "base/README.md": "# base\n",
    "tests/base/yaml_test.cpp": "TEST(Yaml, Reads) {}\nTEST_P(Forms,\n       Agree) {}\n",
    "tests/base/oracle.py": "class Numbers(Case):\n    def test_all(self):\n        pass\n\n\n"
    "class Simulated(Numbers):\n    world = simulate\n",
    "tests/checklist.yaml": "Section:\n  a:\n    base/yaml: Yaml.Reads,\n      Forms.*\n"
    "    base/oracle: Numbers.test_all, Simulated.*\n  b: 'later: not there'\n  c:\n"
    "    base/oracle: '*'\n",
}

# (file, content, part of the report that is expected)
FAULTS = {
    "layers": [
        (
            "base/a.h",
            '#include "traces/timeline.h"\n',
            "base/a.h:1: 'traces/timeline.h': of traces, which DEPS of base do not reach",
        ),
        (
            "sim/isa/a.cpp",
            '\n#include "device/plugin.h"\n',
            "sim/isa/a.cpp:2: 'device/plugin.h': of device_plugin, which DEPS of sim_isa do not",
        ),
        (
            "runtime/a.h",
            '#include "trainer/trainer.h"\n',
            "runtime/a.h:1: 'trainer/trainer.h': of trainer, which DEPS of runtime do not reach",
        ),
        (
            "tests/base/a.cpp",
            '#include "sim/sim.h"\n',
            "of sim_interface, which DEPS of the CMake file of tests/base do not reach",
        ),
        (
            "trainer/a.cpp",
            '#include "device/driver/session.h"\n',
            "of driver, which DEPS of trainer do not reach",
        ),
        (
            "trainer/config/a.cpp",
            '#include "analysis/report/table.h"\n',
            "of report, which DEPS of trainer_config do not reach",
        ),
        (
            "analysis/report/a.cpp",
            '#include "trainer/trainer.h"\n',
            "of trainer, which DEPS of report do not reach",
        ),
        (
            "sim/isa/a.cpp",
            '#include "sim/new/a.h"\n',
            "'sim/new/a.h': no library declares it: name it in HDRS of one",
        ),
        ("sim/new/a.cpp", "\n", "sim/new/a.cpp:1: no library declares it: name it in SRCS of one"),
        (
            "base/CMakeLists.txt",
            "trellis_library(base ROOM . DEPS trellis::traces)\n",
            "base/CMakeLists.txt:1: libraries depend on each other: base, traces",
        ),
        (
            "analysis/CMakeLists.txt",
            "trellis_library(report ROOM report HDRS report/table.h DEPS trellis::trainer_config\n"
            "  trellis::kernels trellis::runtime)\ntrellis_library(other ROOM other)\n",
            "analysis/CMakeLists.txt:1: report has no TORCH and reaches runtime, which have",
        ),
        (
            "sim/isa/a.h",
            "#include <systemc>\n",
            "sim/isa/a.h:1: <systemc>: SystemC belongs to libraries whose DEPS name it",
        ),
        ("sim/isa/a.cpp", '#include "tlm.h"\n', "sim/isa/a.cpp:1: <tlm.h>: SystemC belongs to"),
        (
            "device/driver/a.cpp",
            "#  include <sysc/kernel/sc_time.h>\n",
            "<sysc/kernel/sc_time.h>: SystemC belongs to",
        ),
        (
            "device/driver/a.cpp",
            "#include <c10/util/Exception.h>\n",
            "<c10/util/Exception.h>: LibTorch belongs to libraries with TORCH",
        ),
        ("traces/a.h", "#include <torch/types.h>\n", "<torch/types.h>: LibTorch belongs to"),
        ("trainer/a.h", "#include <torch/torch.h>\n", "<torch/torch.h>: too heavy for a header"),
        ("runtime/a.h", "#include <torch/all.h>\n", "<torch/all.h>: too heavy for a header"),
        (
            "trainer/a.cpp",
            "#include <yaml-cpp/yaml.h>\n",
            "<yaml-cpp/yaml.h>: files are read through base/yaml/yaml.h",
        ),
        (
            "sim/isa/a.cpp",
            '#include "sim/sim.h"\n',
            "folders include each other: sim → sim/isa (sim/sim.h:2), sim/isa → sim "
            "(sim/isa/a.cpp:1)",
        ),
        (
            "base/yaml.cpp",
            '#include "base/yaml.h"\n#include "base/tree.h"\n',
            "2 files include each other: base/tree → base/yaml, base/yaml → ",
        ),
        (
            "sim/isa/a.cpp",
            '#include "neighbour.h"\n',
            "'neighbour.h': expected a path from the project's root",
        ),
        ("base/a.cpp", '#include "tests/support/a.h"\n', "product code includes no tests"),
        (
            "tests/sim/both_test.cpp",
            '#include <ATen/ATen.h>\n#include "sim/systemc/engine.h"\n',
            "SystemC and LibTorch meet in this file",
        ),
    ],
    "sizes": [
        ("sim/a.cpp", "\n" * 601, "sim/a.cpp:601: 601 lines, at most 600 are allowed"),
        ("tests/sim/a_test.cpp", "\n" * 700, "tests/sim/a_test.cpp:601: 700 lines"),
        ("traces/README.md", "\n" * 221, "traces/README.md:221: 221 lines, at most 220"),
        ("CHANGELOG.md", "\n" * 61, "CHANGELOG.md:61: 61 lines, at most 60 are allowed"),
        ("sim/a.cpp", "void f() {\n" + "  g();\n" * 59 + "}\n", "sim/a.cpp:1: f has 61 lines"),
        ("tests/sim/a.py", "def f():\n" + "    g()\n" * 60, "tests/sim/a.py:1: f has 61 lines"),
        ("sim/a.cpp", "//" + "x" * 99 + "\n", "sim/a.cpp:1: 101 columns, at most 100"),
        ("scripts/a", "#" * 101 + "\n", "scripts/a:1: 101 columns"),
        ("sim/README.md", "a word " * 20 + "\n", "sim/README.md:1: 140 columns"),
    ],
    "names": [
        (
            "sim/a.h",
            "namespace trellis {\nstruct A {};\n}\nnamespace trellis {\nstruct A {};\n}\n",
            "sim/a.h:5: trellis::A is defined in sim/a.h:2 too",
        ),
    ],
    "texts": [
        ("base/a.h", "int a();\n", "base/a.h:1: a header starts with #pragma once"),
        (
            "base/a.h",
            "#pragma once\nusing namespace std;\n",
            "base/a.h:2: no 'using namespace' in a header",
        ),
        ("base/a.cpp", "<" * 7 + " HEAD\n", "base/a.cpp:1: a conflict of a merge is not resolved"),
        (
            "base/a.cpp",
            "int a;  // {} later\n".format("TO" + "DO"),
            "base/a.cpp:1: do it now or leave it out",
        ),
        (
            "base/README.md",
            "see /{}/someone/notes\n".format("home"),
            "base/README.md:1: a path of one machine",
        ),
    ],
    "words": [
        (
            "base/a.h",
            "#pragma once\n/// The turned rows.\n",
            "base/a.h:2: 'turned': write 'transposed'",
        ),
        ("base/a.cpp", "int kTurnedRows = 0;\n", "base/a.cpp:1: 'turned': write 'transposed'"),
        ("base/a.cpp", "int a_turned = 0;\n", "base/a.cpp:1: 'turned': write 'transposed'"),
        ("tests/base/a.py", "print('Turned')\n", "tests/base/a.py:1: 'turned': write 'transposed'"),
        (
            "sim/a.cpp",
            "// each in a file of its\n// own, as others\n",
            "sim/a.cpp:1: 'of its own': write 'its own'",
        ),
        (
            "sim/a.cpp",
            'say("a file of its "\n    "own");\n',
            "sim/a.cpp:1: 'of its own': write 'its own'",
        ),
        ("README.md", "The matrix is turned.\n", "README.md:1: 'turned': write 'transposed'"),
        ("scripts/a", "# a turned one\n", "scripts/a:1: 'turned': write 'transposed'"),
        ("CONTRIBUTING.md", "# Contributing\n", "CONTRIBUTING.md:1: expected a section 'Words'"),
    ],
    "format": [
        ("base/a.cpp", "int  a = 0;\n", "base/a.cpp:1:4: error: code should be clang-formatted"),
        ("tests/base/a.py", "import os\n", "tests/base/a.py:1:8: F401"),
        ("tests/base/a.py", "x = 'a'\n", "-x = 'a'"),
        ("scripts/a", "#!/usr/bin/env bash\nrm $1\n", "scripts/a:2:4: note: Double quote"),
    ],
    "map": [
        (
            "base/files/a.cpp",
            "\n",
            "base/files:1: the folder has no line of purpose: trellis_folder(files",
        ),
        (
            "docs/CMakeLists.txt",
            'trellis_folder(. "a site")\n',
            "docs/CMakeLists.txt:1: trellis_folder: CMakeLists.txt has a line for docs/",
        ),
        (
            "base/CMakeLists.txt",
            'trellis_folder(. "units")\ntrellis_folder(files "files")\n',
            "base/CMakeLists.txt:1: trellis_folder: there is no folder base/files/",
        ),
        (
            "base/CMakeLists.txt",
            'trellis_folder(. "metres")\ntrellis_library(base ROOM .)\n',
            "ARCHITECTURE.md:11: the map is not that of the CMake files: run scripts",
        ),
        (
            "sim/CMakeLists.txt",
            'trellis_folder(. "machine")\ntrellis_folder(isa "programs")\n'
            "trellis_library(sim ROOM isa DEPS trellis::base TORCH)\n",
            "ARCHITECTURE.md:6: the picture is not that of the CMake files",
        ),
        ("ARCHITECTURE.md", "# Another\n", "expected a block <!-- generated: map -->"),
    ],
    "paths": [
        ("docs/a.md", "see `base/json.h`\n", "docs/a.md:1: there is no base/json.h"),
        ("base/README.md", "\nsee `json.h` and `yaml.h`\n", "base/README.md:2: there is no json.h"),
        ("base/README.md", "see `yaml.{h,py}`\n", "base/README.md:1: there is no yaml.{h,py}"),
        ("base/README.md", "[a](yaml.h), [b](no.md#c)\n", "README.md:1: a link to no.md, which is"),
        ("docs/a.md", "see `sim/memory/`\n", "docs/a.md:1: there is no sim/memory/"),
        ("base/a.cpp", "// as in sim/core/old.h\n", "base/a.cpp:1: there is no sim/core/old.h"),
    ],
    "figures": [
        (
            "README.md",
            "The median error of steps is 3 %.\n",
            "README.md:1: a figure of accuracy belongs to docs/accuracy.md only",
        ),
        (
            "docs/a.md",
            "| rows | median | worst |\n|---|---|---|\n| a | 2 % | 7 % |\n",
            "docs/a.md:3: a figure of accuracy",
        ),
        ("sim/README.md", "9 % at the 90th percentile\n", "sim/README.md:1: a figure of accuracy"),
        ("cli/a.cpp", 'auto a = "p90 of 11 %";\n', "cli/a.cpp:1: a figure of accuracy"),
    ],
    "checklist": [
        (
            "tests/checklist.yaml",
            "S:\n  a:\n    base/yaml: Yaml.Reads, Yaml.Writes\n",
            "tests/checklist.yaml:3: tests/base/yaml has no case Yaml.Writes",
        ),
        (
            "tests/checklist.yaml",
            "S:\n  a:\n    base/json: Json.Reads\n",
            "tests/checklist.yaml:3: there is no tests/base/json_test.cpp",
        ),
        (
            "tests/checklist.yaml",
            "S:\n  a:\n    base/yaml: Yaml\n",
            "tests/checklist.yaml:3: 'Yaml' is no name of a test",
        ),
        ("tests/checklist.yaml", "S:\n  a: soon\n", "tests/checklist.yaml:2: 'a' has no test"),
        ("tests/checklist.yaml", "S:\n  a:\n", "tests/checklist.yaml:2: 'a' has no test"),
        (
            "tests/base/oracle.py",
            "class Others(Case):\n    def test_all(self):\n",
            "tests/base/oracle has no case Numbers.test_all",
        ),
    ],
}
ROOT = Path(__file__).resolve().parents[2]
FORMATTED = {  # for the formatters, which read their settings from the root
    ".clang-format": (ROOT / ".clang-format").read_text(encoding="utf-8"),
    "ruff.toml": (ROOT / "ruff.toml").read_text(encoding="utf-8"),
    "base/b.cpp": "int b = 0;\n",
    "tests/base/b.py": 'x = "b"\n',
    "scripts/b": '#!/usr/bin/env bash\nrm "$1"\n',
}
MAPPED = {  # the lines of its map and picture are the declarations'
    "CMakeLists.txt": 'trellis_folder(docs "a site (this)")\n'
    "add_subdirectory(sim)\nadd_subdirectory(base)\nadd_subdirectory(docs)\n",
    "base/CMakeLists.txt": 'trellis_folder(. "units")\ntrellis_library(base ROOM .)\n',
    "base/units.cpp": "\n",
    "sim/CMakeLists.txt": 'trellis_folder(. "machine")\ntrellis_folder(isa "programs")\n'
    "trellis_library(sim ROOM isa DEPS trellis::base)\n",
    "sim/isa/program.cpp": "\n",
    "docs/index.md": "\n",
    "ARCHITECTURE.md": "<!-- generated: picture -->\n\n```text\n"
    "      base  LibTorch  SystemC\nbase   ·       ·         ·\nsim    ■       ·         ·\n```\n"
    "<!-- generated: map -->\n\n```text\n"
    "base/                   units\n"
    "sim/                    machine\n"
    "  isa/                  programs\n"
    "docs/                   a site (this)\n```\n",
}
CHECKS = {
    "map": check_map.check,
    "paths": check_paths.check,
    "figures": check_figures.check,
    "format": check_format.check,
    "words": check_words.check,
    "layers": check_layers.check,
    "names": check_names.check,
    "sizes": check_sizes.check,
    "texts": check_texts.check,
    "checklist": check_checklist.check,
}


def problems(check, files):
    with tempfile.TemporaryDirectory() as root:
        for name, content in files.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return list(check(Path(root)))


def main():
    check = CHECKS[sys.argv[1]]
    legal = {"format": FORMATTED, "map": MAPPED}.get(sys.argv[1], LEGAL)
    if sys.argv[1] == "sizes":
        table = "  static const std::vector<int> all = {\n" + "      1,\n" * 80 + "  };\n"
        legal = legal | {
            "sim/long.cpp": "\n" * 600,
            "sim/table.cpp": "int f() {\n" + table + "  return all[0];\n}\n",
            "sim/README.md": "| " + "cell " * 40 + "|\n```\n" + "x" * 120 + "\n```\n",
            "traces/README.md": "\n" * 220,
        }
    clean = problems(check, legal)
    assert clean == [], f"a legal tree was reported: {clean}"
    for name, content, expected in FAULTS[sys.argv[1]]:
        found = problems(check, legal | {name: content})
        assert any(expected in problem for problem in found), (
            f"{name}: expected {expected!r}, got {found}"
        )
    print(len(FAULTS[sys.argv[1]]), "planted faults were reported")


if __name__ == "__main__":
    main()
