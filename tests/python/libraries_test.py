"""Other libraries train on neuron as on the CPU, unmodified except for `import trellis_neuron`. The
cases are the rows of docs/guides/libraries.md; `--write` puts them there."""

import importlib
import importlib.metadata
import math
import pathlib
import sys
import unittest
import warnings

import torch
import torchvision_package
import trellis_neuron

SOURCE = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = SOURCE / "examples/python/libraries"
PAGE = SOURCE / "docs/guides/libraries.md"
BEGIN, END = "<!-- cases -->\n", "<!-- end of cases -->\n"
torch.set_num_threads(1)
sys.path.insert(0, str(EXAMPLES))

# Library, feature, module in examples/python/libraries, arguments of train(), tolerance and why.
SUMS = "sums over ranks in another order than one rank's"
FEW_BITS = "at most the last bits of fp32 differ; the operator was not traced"
CASES = [
    ("transformers", "Trainer", "transformers_trainer", {}, 0, ""),
    ("transformers", "Trainer, bf16", "transformers_trainer", {"bf16": True}, 0, ""),
    ("accelerate", "a custom loop", "accelerate_loop", {}, 0, ""),
    ("accelerate", "mixed_precision bf16", "accelerate_loop", {"mixed_precision": "bf16"}, 0, ""),
    ("trl", "SFTTrainer", "trl_sft", {}, 1e-6, FEW_BITS),
    ("trl", "DPOTrainer", "trl_dpo", {}, 1e-6, FEW_BITS),
    ("peft", "LoRA in transformers' Trainer", "peft_lora", {}, 0, ""),
    ("lightning", 'Trainer(accelerator="neuron")', "lightning_fit", {}, 0, ""),
    ("diffusers", "UNet2DModel with attention", "diffusers_unet", {}, 1e-6, ""),
    ("torchvision", "ResNet-18", "torchvision_resnet", {}, 0, ""),
    ("torch", 'compile, backend "eager"', "torch_compile", {"backend": "eager"}, 0, ""),
    ("torch", 'compile, backend "aot_eager"', "torch_compile", {"backend": "aot_eager"}, 0, ""),
    ("torch", "compile, default backend", "torch_compile", {"backend": "inductor"}, 0, ""),
    ("torch", 'compile, backend "neuron"', "torch_compile", {"backend": "neuron"}, 0, ""),
    ("torch", "DistributedDataParallel", "torch_distributed", {"kind": "ddp"}, 1e-6, SUMS),
    ("torch", "FullyShardedDataParallel", "torch_distributed", {"kind": "fsdp"}, 1e-6, SUMS),
    ("torch", "fully_shard (FSDP2)", "torch_distributed", {"kind": "fully_shard"}, 1e-6, SUMS),
    (
        "torch",
        "parallelize_module (tensor parallelism)",
        "torch_distributed",
        {"kind": "tensor_parallel"},
        1e-6,
        SUMS,
    ),
    ("torch", "distributed.pipelining", "torch_distributed", {"kind": "pipelining"}, 1e-6, SUMS),
]


def version_of(library) -> str:
    if library == "torchvision":
        return torchvision_package.version()
    return importlib.metadata.version(library).split("+")[0]


def table() -> str:
    lines = ["| library | version | feature | losses against the CPU | example |"]
    lines.append("|---|---|---|---|---|")
    for library, feature, module, _, tolerance, why in CASES:
        version = version_of(library)
        equal = f"within {tolerance:g} relative" if tolerance else "equal bits"
        equal += f": {why}" if why else ""
        lines.append(f"| {library} | {version} | {feature} | {equal} | `{module}.py` |")
    return "\n".join(lines) + "\n"


class Losses(unittest.TestCase):
    def test_every_example_is_a_case(self):
        examples = {path.stem for path in EXAMPLES.glob("*.py")} - {"small_llama"}
        self.assertEqual(examples, {module for _, _, module, *_ in CASES})


def check(module, arguments, tolerance):
    def run(self):
        if module.startswith("torchvision"):
            torchvision_package.add()
        train = importlib.import_module(module).train
        own = {} if module in ("torch_compile", "torch_distributed") else arguments
        expected = train("cpu", **own)
        with warnings.catch_warnings(), trellis_neuron.simulate("trn2.48xlarge") as simulation:
            warnings.simplefilter("ignore")
            got = train("neuron", **arguments)
        self.assertEqual(len(got), len(expected))
        self.assertTrue(all(map(math.isfinite, got)), got)
        for of_device, of_cpu in zip(got, expected):
            self.assertLessEqual(abs(of_device - of_cpu), tolerance * abs(of_cpu))
        report = simulation.report()
        self.assertTrue(report.ranks(), "nothing ran on the device")
        self.assertGreater(report.step_times_ms()[-1], 0)

    return run


for _, _, module, arguments, tolerance, _ in CASES:
    name = "_".join([module, *(str(value) for value in arguments.values())])
    setattr(Losses, f"test_{name}", check(module, arguments, tolerance))


class Page(unittest.TestCase):
    def test_lists_these_cases(self):
        text = PAGE.read_text()
        self.assertIn(BEGIN + "\n" + table() + "\n" + END, text, f"{__file__} --write")


class Switch(unittest.TestCase):
    def test_integrations_can_be_switched_off(self):
        import os
        import subprocess

        program = (
            "import importlib.util, torch, trellis_neuron;"
            "print(importlib.util.find_spec('torch_neuronx') is not None)"
        )
        for value, expected in (("1", "True"), ("0", "False")):
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "TRELLIS_INTEGRATIONS": value},
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.stdout.strip(), expected, done.stderr)


class AutomaticChoice(unittest.TestCase):
    def test_lightning(self):
        import lightning

        types = []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)

            def training_step(self, batch, _):
                result = self.layer(batch[0])
                types.append((result.device.type, result.dtype))
                return result.float().sum()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)))
        quiet = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(max_steps=1, precision="bf16-mixed", **quiet)
            trainer.fit(Module(), data)
            fabric = lightning.Fabric(accelerator="auto")
        self.assertEqual(types, [("neuron", torch.bfloat16)])
        self.assertEqual(fabric.device.type, "neuron")

    def test_device_map(self):
        from accelerate import infer_auto_device_map
        from accelerate.utils import get_max_memory

        memory = get_max_memory()
        cores = [key for key in memory if isinstance(key, int)]
        self.assertEqual(cores, list(range(torch.neuron.device_count())))
        self.assertEqual(infer_auto_device_map(torch.nn.Linear(2, 2)), {"": 0})
        with self.assertNoLogs():
            self.assertEqual(get_max_memory({1: "1KB", 0: 5, "cpu": 7}), {0: 5, 1: 1000, "cpu": 7})
        with self.assertRaisesRegex(ValueError, "expected cores among"):
            get_max_memory({500: 1})


class NothingRan(unittest.TestCase):
    def test_simulate_says_where_the_program_ran(self):
        with self.assertWarnsRegex(UserWarning, "nothing ran on neuron.*cpu"):
            with trellis_neuron.simulate("trn2.48xlarge"):
                torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()


def write():
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    write() if "--write" in sys.argv else unittest.main()
