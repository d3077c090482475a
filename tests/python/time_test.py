"""Device time as a PyTorch user sees it: events, streams, torch.profiler and the portability list,
all in simulated time."""

import json
import pathlib
import tempfile
import unittest

import torch
import trellis_neuron  # noqa: F401
from fresh import run_python
from torch.profiler import ProfilerActivity, profile

DEVICE = "neuron"


def now_ps():
    return torch.ops.trellis.simulated_time_ps(0)


def event():
    mark = torch.Event(DEVICE, enable_timing=True)
    mark.record()
    return mark


class Events(unittest.TestCase):
    def test_parts_add_up(self):
        a = torch.ones(256, 256, device=DEVICE)
        begin = event()
        a @ a
        middle = event()
        (a @ a).relu()
        end = event()
        torch.accelerator.synchronize()
        self.assertGreater(begin.elapsed_time(middle), 0)
        self.assertAlmostEqual(
            begin.elapsed_time(middle) + middle.elapsed_time(end),
            begin.elapsed_time(end),
            places=12,
        )

    def test_is_the_devices_clock(self):
        before, begin = now_ps(), event()
        a = torch.ones(512, 512, device=DEVICE)
        a @ a
        end, after = event(), now_ps()
        self.assertAlmostEqual(begin.elapsed_time(end), (after - before) * 1e-9, places=9)

    def test_enable_timing(self):
        plain = torch.Event(DEVICE)
        plain.record()
        with self.assertRaisesRegex(ValueError, "enable_timing=True"):
            plain.elapsed_time(event())

    def test_streams(self):
        stream = torch.Stream(DEVICE)
        self.assertEqual(
            stream, torch.accelerator.current_stream()
        )  # without NEURON_RT_ENABLE_HOST_CC=1
        stream.wait_event(event())
        stream.wait_stream(torch.accelerator.current_stream())
        stream.synchronize()
        self.assertTrue(stream.query())


TRAINING = """
import torch, trellis_neuron
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()).to("neuron")
optimizer = torch.optim.AdamW(model.parameters())
stream, marks = torch.Stream("neuron"), []
for _ in range(4):
    with stream:
        model(torch.ones(4, 16, device="neuron")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        marks.append(torch.Event("neuron", enable_timing=True))
        marks[-1].record()
print(stream.stream_id, [a.elapsed_time(b) for a, b in zip(marks[1:], marks[2:])])
"""


class Modes(unittest.TestCase):
    """The same program as separate processes, because the environment is read once."""

    def trained(self, **environment):
        run = run_python(TRAINING, **environment)
        self.assertEqual(run.returncode, 0, run.stderr)
        stream, times = run.stdout.split(" ", 1)
        return int(stream), json.loads(times)

    def test_shape_only_takes_the_same_time(self):
        stream, times = self.trained()
        self.assertEqual(stream, 0)
        self.assertGreater(times[0], 0)
        self.assertEqual(times[0], times[1])
        self.assertEqual(self.trained(TRELLIS_SHAPE_ONLY="1"), (0, times))

    def test_training_on_another_stream(self):
        stream, times = self.trained(NEURON_RT_ENABLE_HOST_CC="1")
        self.assertEqual(stream, 1)
        self.assertEqual(times[0], times[1])


class Profiler(unittest.TestCase):
    def profiled(self, body):
        torch.ones(4, device=DEVICE).add(1).sum().item()
        before = now_ps()
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], record_shapes=True
        ) as profiler:
            body()
        return profiler, now_ps() - before

    @staticmethod
    def slices(profiler):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        return [e for e in events if "simulated_ps" in e.get("args", {})]

    def test_slices_add_up_to_the_clock(self):
        a, b = torch.ones(256, 256, device=DEVICE), torch.ones(256, device=DEVICE)

        def body():
            torch.nn.functional.softmax(a @ a + b, -1).sum().item()

        profiler, passed = self.profiled(body)
        slices = self.slices(profiler)
        self.assertEqual(sum(s["args"]["simulated_ps"] for s in slices), passed)
        matmul = [s for s in slices if s["name"] == "mm"]
        self.assertEqual(len(matmul), 1)
        self.assertIn("256, 256", matmul[0]["args"]["shapes"])

    def test_operators_own_their_device_time(self):
        a = torch.ones(512, 512, device=DEVICE)

        def body():
            for _ in range(3):
                (a @ a).sum().item()

        profiler, passed = self.profiled(body)
        rows = {row.key: row for row in profiler.key_averages()}
        self.assertGreater(rows["aten::mm"].device_time_total, 0)
        self.assertEqual(rows["mm"].count, 3)
        device = sum(
            row.self_device_time_total
            for row in rows.values()
            if str(row.device_type) != "DeviceType.CPU"
        )
        self.assertAlmostEqual(device, passed * 1e-6, delta=0.1)
        self.assertIn("NEURON", profiler.key_averages().table().upper())

    def test_host_alone(self):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            torch.ones(4, device=DEVICE).add(1)
        self.assertEqual(self.slices(profiler), [])


class Phases(unittest.TestCase):
    def test_a_training_loop_announces_nothing(self):
        model = torch.nn.Linear(16, 16, device=DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(4, 16, device=DEVICE)
        begin = event()
        for _ in range(2):
            model(x).tanh().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(x).sinh().sum().item()
        self.assertGreater(begin.elapsed_time(event()), 0)
        rows = json.loads(torch.ops.trellis.portability(0))["operators"]
        places = {row["operator"].split(".")[0]: row["places"] for row in rows}
        self.assertEqual(places["tanh"], ["forward"])
        self.assertEqual(places["tanh_backward"], ["backward"])
        self.assertEqual(places["sinh"], ["eval"])
        self.assertTrue(any(of == ["optimizer"] for of in places.values()), places)


class Portability(unittest.TestCase):
    def rows(self):
        document = json.loads(torch.ops.trellis.portability(0))
        self.assertEqual(document["schema"], "trellis.portability/1")
        return {(row["operator"], row["dtype"]): row for row in document["operators"]}

    def test_types(self):
        for dtype in (torch.bfloat16, torch.float64, torch.complex64):
            a = torch.ones(8, 8, dtype=dtype, device=DEVICE)
            a @ a
        rows = self.rows()
        self.assertTrue(rows["mm", "bf16"]["portable"])
        self.assertEqual(rows["mm", "fp64"]["on_device"], "computed in fp32 there")
        self.assertIn("CPU", rows["mm", "complex64"]["on_device"])

    def test_counts_and_places(self):
        a = torch.ones(8, 8, dtype=torch.float64, device=DEVICE)
        before = self.rows().get(("atanh", "fp64"), {"count": 0})["count"]
        for _ in range(5):
            a.atanh()
        row = self.rows()["atanh", "fp64"]
        self.assertEqual(row["count"], before + 5)
        self.assertIn("forward", row["places"])

    def test_operators_without_lowering(self):
        torch.linalg.qr(torch.ones(4, 4, device=DEVICE))
        self.assertIn("no lowering", self.rows()["linalg_qr", "fp32"]["on_device"])


if __name__ == "__main__":
    unittest.main()
