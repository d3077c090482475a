"""Plants one fault after the other in a small legal tree and expects the check to report it. Usage: self_test.py layers|sizes|texts|checklist"""
import sys
import tempfile
from pathlib import Path

import check_checklist
import check_layers
import check_sizes
import check_texts

LEGAL = {
    "base/yaml.cpp": '#include "base/yaml.h"\n#include <yaml-cpp/yaml.h>\n',
    "base/yaml.h": "#pragma once\n#include <string>\n",
    "traces/timeline.h": '#pragma once\n#include "base/yaml.h"\n',
    "sim/sim.h": '#pragma once\n#include "sim/isa/program.h"\n',
    "sim/isa/program.h": '#pragma once\n#include "base/yaml.h"\n',
    "sim/core/engine.h": '#pragma once\n#include <systemc>\n#include <tlm_utils/simple_target_socket.h>\n#include "sim/isa/program.h"\n',
    "device/plugin.h": "#ifndef A\n#define A\n#endif\n",
    "device/driver/session.h": '#pragma once\n#include "sim/sim.h"\n',
    "device/compiler/lower.cpp": '#include "sim/isa/program.h"\n',
    "device/aten/kernel.cpp": '#include <ATen/ATen.h>\n#include <c10/core/Device.h>\n#include "device/driver/session.h"\n',
    "runtime/world.cpp": '#include <torch/torch.h>\n#include "device/plugin.h"\n',
    "trainer/trainer.h": '#pragma once\n#include <torch/nn/module.h>\n#include "runtime/world.h"\n',
    "tests/sim/core/engine_test.cpp": '#include <systemc>\n#include "sim/core/engine.h"\n#include "tests/support/a.h"\n',
    "tests/device/kernel_test.cpp": '#include <torch/torch.h>\n#include "device/driver/session.h"\n',
    "base/README.md": "# base\n",
    "tests/base/yaml_test.cpp": "TEST(Yaml, Reads) {}\nTEST_P(Forms,\n       Agree) {}\n",
    "tests/base/oracle.py": "class Numbers(Case):\n    def test_all(self):\n",
    "docs/checklist.md": "| feature | tests |\n|---|---|\n| a | `base/yaml:Yaml.Reads`, `base/yaml:Forms.*`, `base/oracle:Numbers.test_all` |\n| b | later: not there |\n",
}

# (file, content, part of the report that is expected)
FAULTS = {
    "layers": [
        ("base/a.h", '#include "traces/timeline.h"\n', "base/a.h:1: 'traces/timeline.h': base must not include traces"),
        ("sim/core/a.cpp", '\n#include "device/plugin.h"\n', "sim/core/a.cpp:2: 'device/plugin.h': sim must not include device"),
        ("runtime/a.h", '#include "trainer/trainer.h"\n', "runtime/a.h:1: 'trainer/trainer.h': runtime must not include trainer"),
        ("tests/base/a.cpp", '#include "sim/sim.h"\n', "tests/base/a.cpp:1: 'sim/sim.h': base must not include sim"),
        ("sim/isa/a.h", "#include <systemc>\n", "sim/isa/a.h:1: <systemc>: SystemC belongs to sim/"),
        ("sim/config/a.cpp", "#include <systemc.h>\n", "sim/config/a.cpp:1: <systemc.h>: SystemC belongs to sim/"),
        ("sim/collectives/a.cpp", '#include "tlm.h"\n', "sim/collectives/a.cpp:1: <tlm.h>: SystemC belongs to sim/"),
        ("sim/sim.h", "#include <tlm>\n", "sim/sim.h:1: <tlm>: SystemC belongs to sim/"),
        ("device/compiler/a.cpp", "#  include <sysc/kernel/sc_time.h>\n", "<sysc/kernel/sc_time.h>: SystemC belongs to sim/"),
        ("device/driver/a.cpp", "#include <c10/util/Exception.h>\n", "<c10/util/Exception.h>: LibTorch belongs to device/aten"),
        ("sim/core/a.cpp", "#include <ATen/ATen.h>\n", "<ATen/ATen.h>: LibTorch belongs to"),
        ("traces/a.h", "#include <torch/types.h>\n", "<torch/types.h>: LibTorch belongs to"),
        ("trainer/a.h", "#include <torch/torch.h>\n", "<torch/torch.h>: too heavy for a header"),
        ("runtime/a.h", "#include <torch/all.h>\n", "<torch/all.h>: too heavy for a header"),
        ("trainer/a.cpp", "#include <yaml-cpp/yaml.h>\n", "<yaml-cpp/yaml.h>: files are read through base/yaml.h"),
        ("trainer/a.cpp", '#include "device/driver/session.h"\n', "trainer knows the device by device/plugin.h only"),
        ("runtime/a.cpp", '#include "device/compiler/graph.h"\n', "runtime knows the device by device/plugin.h only"),
        ("device/driver/a.cpp", '#include "sim/core/engine.h"\n', "outside sim/ only its plain headers may be included"),
        ("sim/core/a.cpp", '#include "neighbour.h"\n', "'neighbour.h': expected a path from the project's root"),
        ("base/a.cpp", '#include "tests/support/a.h"\n', "product code includes no tests"),
        ("tests/sim/both_test.cpp", '#include <ATen/ATen.h>\n#include "sim/core/engine.h"\n', "SystemC and LibTorch meet in this file"),
    ],
    "sizes": [
        ("sim/a.cpp", "\n" * 601, "sim/a.cpp:601: 601 lines, at most 600 are allowed"),
        ("tests/sim/a_test.cpp", "\n" * 700, "tests/sim/a_test.cpp:601: 700 lines"),
        ("traces/README.md", "\n" * 201, "traces/README.md:201: 201 lines, at most 200 are allowed"),
    ],
    "texts": [
        ("base/a.h", "int a();\n", "base/a.h:1: a header starts with #pragma once"),
        ("base/a.h", "#pragma once\nusing namespace std;\n", "base/a.h:2: no 'using namespace' in a header"),
        ("base/a.cpp", "int a;  // TO" "DO later\n", "base/a.cpp:1: do it now or leave it out"),
        ("base/README.md", "see /ho" "me/somebody/notes\n", "base/README.md:1: a path of one machine"),
    ],
    "checklist": [
        ("docs/checklist.md", "| a | `base/yaml:Yaml.Writes` |\n", "docs/checklist.md:1: tests/base/yaml has no case Yaml.Writes"),
        ("docs/checklist.md", "| a | `base/json:Json.Reads` |\n", "docs/checklist.md:1: there is no tests/base/json_test.cpp"),
        ("docs/checklist.md", "| a | `base/yaml:Yaml` |\n", "`base/yaml:Yaml` is no name of a test"),
        ("docs/checklist.md", "\n| a | soon |\n", "docs/checklist.md:2: a row without a test"),
        ("tests/base/oracle.py", "class Others(Case):\n    def test_all(self):\n", "tests/base/oracle has no case Numbers.test_all"),
    ],
}
CHECKS = {"layers": check_layers.check, "sizes": check_sizes.check, "texts": check_texts.check, "checklist": check_checklist.check}


def problems(check, files):
    with tempfile.TemporaryDirectory() as root:
        for name, content in files.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return list(check(Path(root)))


def main():
    check = CHECKS[sys.argv[1]]
    clean = problems(check, LEGAL | {"sim/long.cpp": "\n" * 600, "traces/README.md": "\n" * 200})
    assert clean == [], f"a legal tree was reported: {clean}"
    for name, content, expected in FAULTS[sys.argv[1]]:
        found = problems(check, LEGAL | {name: content})
        assert any(expected in problem for problem in found), f"{name}: expected {expected!r}, got {found}"
    print(len(FAULTS[sys.argv[1]]), "planted faults were reported")


if __name__ == "__main__":
    main()
