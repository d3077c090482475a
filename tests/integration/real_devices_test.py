"""A device of LibTorch in place of the emulated one: equal losses, measured steps, errors.

`sealed` is a device as a vendor's library brings it, whose memory the host cannot touch
(tests/device/torch_device/sealed_device.cpp).
"""

import glob
import json
import os
import pathlib
import socket
import subprocess
import sys
import unittest

from cli_case import QUICKSTART, SOURCE, TRELLIS, CheckedCase

LIBRARIES = pathlib.Path(TRELLIS).resolve().parents[1] / "lib"
SEALED = LIBRARIES / "libsealed_device.so"
# The CPU's fused attention is the CPU's alone: without it all devices run the same kernels.
RUN = [
    "trainer.max_steps=3",
    "model.num_layers=2",
    "exp_manager.use_datetime_version=false",
    "model.fusions.flash_attention=false",
]
ON_SEALED = ["--device", "privateuse1", "--device-library", SEALED]


class DeviceCase(CheckedCase):
    def run_on(self, log, *arguments, **kwargs):
        return self.trellis(
            "train", QUICKSTART, *RUN, f"exp_manager.explicit_log_dir={log}", *arguments, **kwargs
        )

    def losses(self, log):
        lines = (self.dir / log / "metrics.jsonl").read_text().splitlines()
        return [(m["loss"], m["grad_norm"]) for m in map(json.loads, lines)]

    def report(self, log):
        return json.loads((self.dir / log / "report.json").read_text())

    def refused(self, text, *arguments, **kwargs):
        result = self.run_on("refused", *arguments, returncode=2, **kwargs)
        self.assertIn(text, result.stderr)
        return result.stderr


class Training(DeviceCase):
    def test_losses_of_every_way_to_the_device_are_the_cpus(self):
        self.run_on("cpu", "--device", "cpu")
        ways = {
            "plugin": ["--device", "cpu", "--device-plugin", "torch_device"],
            "gloo": ["--device", "cpu", "--backend", "gloo"],
            "sealed": ON_SEALED,
            "sealed_gloo": ["--device", "sealed", "--device-library", SEALED, "--backend", "gloo"],
        }
        expected = self.losses("cpu")
        self.assertEqual(len(expected), 3)
        for log, arguments in ways.items():
            self.run_on(log, *arguments)
            self.assertEqual(self.losses(log), expected, log)
        self.check_measured("plugin", "cpu", "host", "host clock")
        self.check_measured("sealed_gloo", "sealed", "gloo", "device events")
        memory = self.report("sealed")["measured"]["ranks"][0]["memory"]
        # Two devices, shared by 8 ranks: at least weights, masters and two moments are there.
        least = self.report("sealed")["parameters"] * (2 + 3 * 4) // 4
        self.assertGreater(memory["peak_allocated_bytes"], least)
        self.assertGreaterEqual(memory["peak_reserved_bytes"], memory["peak_allocated_bytes"])

    def test_verify_and_resume_check_run_there(self):
        self.trellis(
            *("verify", SOURCE / "examples/verify_llama.yaml", "model.num_layers=1"),
            *("model.fusions.flash_attention=false", "--ranks", "2", "--steps", "1"),
            *("--layouts", "TP2", *ON_SEALED),
        )
        check = ["resume-check", QUICKSTART, *RUN, "--steps", "2", "--cut", "1", "--json"]
        here, there = (
            json.loads(self.trellis(*check, *device).stdout)
            for device in ([], [*ON_SEALED, "--backend", "gloo"])
        )
        self.assertTrue(here["hashes"])
        self.assertEqual(here["hashes"], there["hashes"])
        for verb in ("verify", "resume-check"):
            refused = self.trellis(verb, QUICKSTART, "--device", "privateuse1", returncode=2)
            self.assertIn("give the library that registers it", refused.stderr, verb)

    def test_evaluate_runs_there(self):
        self.run_on(
            *("trained", "--device", "cpu", "trainer.max_steps=1"),
            "exp_manager.create_checkpoint_callback=true",
        )
        (self.dir / "records.jsonl").write_text('{"input": "1 and 2 ", "output": "are 3"}\n')
        losses = [
            json.loads(
                self.trellis(
                    *("evaluate", QUICKSTART, *RUN, "--data", "records.jsonl", "--json"),
                    *("--checkpoint", "trained/checkpoints", *device),
                ).stdout
            )["loss"]
            for device in ([], ON_SEALED)
        ]
        self.assertEqual(losses[0], losses[1])

    def check_measured(self, log, device, backend, clock):
        report = self.report(log)
        measured = report["measured"]
        self.assertNotIn("simulated", report)
        self.assertEqual(
            [measured[key] for key in ("device", "backend", "clock", "steps", "warmup_steps")],
            [device, backend, clock, 2, 1],
        )
        self.assertEqual([row["rank"] for row in measured["ranks"]], list(range(8)))
        for row in measured["ranks"]:
            self.assertLessEqual({"forward", "backward", "optimizer"}, row["phases"].keys())
            self.assertAlmostEqual(
                sum(row["phases"].values()), row["step_time_s"], delta=0.02 * row["step_time_s"]
            )
        slowest = max(row["step_time_s"] for row in measured["ranks"])
        self.assertEqual(measured["step_time_s"], slowest)
        self.assertAlmostEqual(report["tokens_per_s"] * slowest, report["tokens_per_step"])

    def test_processes_give_the_numbers_and_times_of_all_ranks(self):
        self.run_on("cpu", "--device", "cpu")
        for backend in [[], ["--backend", "gloo"]]:
            log = "processes" + "".join(backend)
            self.start_processes(2, log, *ON_SEALED, *backend)
            self.assertEqual(self.losses(log), self.losses("cpu"))
            rows = self.report(log)["measured"]["ranks"]
            self.assertEqual(sorted(row["rank"] for row in rows), list(range(8)))

    def start_processes(self, count, log, *arguments):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [TRELLIS, "train", QUICKSTART, *RUN, f"exp_manager.explicit_log_dir={log}"]
        started = [
            subprocess.Popen(
                [*map(str, command), *map(str, arguments)],
                cwd=self.dir,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                },
            )
            for rank in range(count)
        ]
        for process in started:
            _, errors = process.communicate(timeout=240)
            self.assertEqual(process.returncode, 0, errors[-2000:])


class Comparing(DeviceCase):
    def test_reports_of_both_kinds(self):
        self.run_on("emulated", "--device", "neuron")
        for log in ("real", "again"):
            self.run_on(log, "--device", "cpu", "--device-plugin", "torch_device")
        both = self.trellis("report", "emulated", "real").stdout
        for text in ("simulated", "measured", "ratio", "  forward", "Largest difference: "):
            self.assertIn(text, both)
        self.assertIn("Measured step", self.trellis("report", "real").stdout)
        step = self.report("emulated")["simulated"]
        simulated, stage = step["step_time_ps"] * 1e-12, step["attribution"]["rank"] // 4
        # Compared is the slowest rank of the pipeline stage that the emulated report explains.
        measured = max(
            row["step_time_s"]
            for row in self.report("real")["measured"]["ranks"]
            if row["rank"] // 4 == stage
        )
        ratio = float(both.split("measured step ")[1].split(": ")[1].split()[0])
        self.assertAlmostEqual(ratio, measured / simulated, delta=0.006 * ratio)
        self.compare("emulated", "real")
        self.compare("real", "again")
        self.gate()
        self.calibrate()

    def compare(self, before, after):
        """Phases explain the change of the step."""
        diff = json.loads(self.trellis("diff", before, after, "--json").stdout)
        phases = diff["step"]["phase"]
        self.assertGreaterEqual({row["name"] for row in phases}, {"forward", "optimizer"})
        explained = sum(row["change_ps"] for row in phases)
        self.assertAlmostEqual(
            explained, diff["step_change_ps"], delta=0.02 * diff["step_after_ps"]
        )
        self.assertIn("phase", self.trellis("diff", before, after).stdout)

    def gate(self):
        self.trellis("gate", "real", "--baseline", "base.json", "--update-baseline")
        self.trellis("gate", "real", "--baseline", "base.json", "--max-regression", "0%")
        base = json.loads((self.dir / "base.json").read_text())
        measured = base["report"]["measured"]
        measured["step_time_s"] /= 2
        (self.dir / "base.json").write_text(json.dumps(base))
        failed = self.trellis("gate", "real", "--baseline", "base.json", returncode=6).stdout
        self.assertIn("step time", failed)
        refused = self.trellis("gate", "emulated", "--baseline", "base.json", returncode=2).stderr
        self.assertIn("device", refused)

    def calibrate(self):
        head = "config,instance,overrides,run,use\n"
        overrides = " ".join(RUN)
        row = f"{QUICKSTART},trn1.32xlarge,{overrides},{{}},fit\n"
        csv = self.dir / "mine.csv"
        csv.write_text(head + row.format("real") + row.format("again"))
        fitted = json.loads(self.trellis("calibrate", "mine.csv", "--json").stdout)
        self.assertIn("schema", fitted)
        csv.write_text(head + row.format("real") + row.format("emulated"))
        refused = self.trellis("calibrate", "mine.csv", returncode=2).stderr
        self.assertIn("mine.csv:3:run: ", refused)
        self.assertIn("a simulated step is no measurement", refused)


class Script(DeviceCase):
    """scripts/real-device: every step on a device whose memory the host cannot touch."""

    def script(self, *arguments, returncode=0):
        result = subprocess.run(
            [sys.executable, SOURCE / "scripts/real-device", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "TRELLIS": str(TRELLIS)},
        )
        self.assertEqual(result.returncode, returncode, result.stderr[-2000:])
        return result.stdout.splitlines() + result.stderr.splitlines()

    def test_each_step_is_a_line(self):
        lines = self.script(*ON_SEALED, "--out", self.dir / "out", "--steps", "2")
        steps = ["train", "resume", "verify", "hang", "report", "calibrate", "real-device:"]
        self.assertEqual([line.split()[0] for line in lines], steps)
        self.assertIn("rank 3 named, exit code 4", lines[3])
        self.assertIn("difference", lines[4].lower())

    def test_without_a_gpu_it_says_so_in_one_line(self):
        if glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/kfd"):
            self.skipTest("there is a GPU")
        (line,) = self.script()
        self.assertIn("nothing was run: no GPU on this machine", line)

    def test_a_step_that_fails_is_named(self):
        lines = self.script(
            *("--device", "xpu", "--out", self.dir / "out", "--steps", "1"), returncode=1
        )
        self.assertIn("offers no such device", "\n".join(lines))


class Refused(DeviceCase):
    def test_what_is_not_there_is_named(self):
        self.refused(
            "--device cuda: LibTorch 2.13.0 offers no such device in this process: expected one of "
            "cpu",
            "--device",
            "cuda",
        )
        self.refused("give the library that registers it", "--device", "privateuse1")
        missing = ["--device", "privateuse1", "--device-library", "/no/such.so"]
        self.refused("--device-library /no/such.so: the file does not exist", *missing)
        text = ["--device", "privateuse1", "--device-library", QUICKSTART]
        self.refused("the library does not load: ", *text)
        self.refused("cpu, sealed (2)", "--device", "xpu", "--device-library", SEALED)
        self.refused(
            "--backend nccl: this LibTorch was built without it: expected one of gloo",
            *ON_SEALED,
            "--backend",
            "nccl",
        )
        self.refused("--backend gloo: is for a device of LibTorch", "--backend", "gloo")
        self.refused(
            "ring attention is supported on neuron and cpu only, but context_parallel_size is 2",
            *ON_SEALED,
            "distributed_strategy.context_parallel_size=2",
            "model.fusions={ring_attention: true, flash_attention: false}",
        )
        self.refused("TorchNeuron registers it from Python", "--device-plugin", "torch_device")

    def test_plugins_of_other_builds(self):
        for name, text in {
            "fake_plugin_abi": "plugin ABI mismatch: expected version 3, got 7",
            "fake_plugin_torch": "LibTorch version mismatch: expected 2.13.0",
            "no_plugin": "expected an exported function trellis_device_plugin",
        }.items():
            plugin = LIBRARIES / f"lib{name}.so"
            if not plugin.exists():
                self.skipTest(f"{plugin} is not built: ninja runtime_device_plugin_test")
            self.refused(text, "--device", "cpu", "--device-plugin", plugin)

    def test_a_lacking_operator_is_named_with_its_layers_before_step_1(self):
        without = {"SEALED_WITHOUT": "silu,_fused_adamw_"}
        text = self.refused(
            "the device does not have operators of this run", *ON_SEALED, env=without
        )
        self.assertRegex(text, r"silu\S* \(.*forward model\.layers\.0\.mlp")
        self.assertRegex(text, r"_fused_adamw_\S* \(optimizer\)")
        self.assertFalse((self.dir / "refused").exists(), "nothing has begun")


class Portability(DeviceCase):
    def portability(self, *arguments, **kwargs):
        return self.trellis("portability", QUICKSTART, *RUN, *arguments, **kwargs)

    def test_the_list_and_its_judges(self):
        listed = json.loads(self.portability("--json").stdout)
        names = {row["operator"] for row in listed["operators"]}
        self.assertLessEqual({"mm", "all_reduce", "send_recv"}, names)
        neuron = json.loads(
            self.portability("--for", "torch_neuron", "--json", returncode=2).stdout
        )
        self.assertEqual([row["operator"] for row in neuron["lacking"]], ["send_recv"])
        unmet = {row["what"] for row in neuron["requirements"] if not row["met"]}
        self.assertEqual(unmet, {"machine", "Python"})
        self.assertIn(
            ("embedding", "int64", "computed in int32 there"),
            {(row["operator"], row["dtype"], row["there"]) for row in neuron["other"]},
        )
        alone = self.portability(
            "distributed_strategy.pipeline_model_parallel_size=1",
            "--for",
            "torch_neuron",
            "--json",
            returncode=2,
        )
        self.assertEqual(json.loads(alone.stdout)["lacking"], [])
        on_sealed = ["--for", "privateuse1", "--device-library", SEALED]
        self.assertIn("the run works there", self.portability(*on_sealed).stdout)
        lacking = self.portability(*on_sealed, returncode=2, env={"SEALED_WITHOUT": "mm"}).stdout
        self.assertRegex(lacking, r"mm +.*no kernel +.*self_attn")


if __name__ == "__main__":
    unittest.main()
