"""simulate(): steps, their parts, memory, traces; what a body may and may not do."""

import gc
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import torch
import trellis_neuron

PARTS = (
    "matmul",
    "other_compute",
    "exposed_tp",
    "exposed_pp",
    "exposed_dp",
    "bubble",
    "optimizer",
    "data",
    "launch",
    "host",
    "multi_node",
    "other",
)


def mlp(width=64):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    ).to("neuron")


def train(steps, width=64, model=None):
    model = model or mlp(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.ones(8, width, device="neuron")
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Steps(unittest.TestCase):
    def tearDown(self):
        gc.collect()

    def test_a_step_per_optimizer_step(self):
        with trellis_neuron.simulate("trn2.48xlarge", tokens_per_step=8) as run:
            train(4)
        document = run.as_dict()
        json.dumps(document)
        self.assertEqual([step["step"] for step in document["steps"]], [0, 1, 2, 3])
        self.assertEqual(document["ranks"], [0])
        self.assertGreater(document["steps"][1]["step_time_ps"], 0)
        # Steps 2 and 3 do the same: zero_grad() and the optimizer's first step make 0 and 1
        # different.
        self.assertEqual(document["steps"][2]["step_time_ps"], document["steps"][3]["step_time_ps"])
        self.assertAlmostEqual(
            document["tokens_per_second"],
            8 / (document["steps"][3]["step_time_ps"] * 1e-12),
            places=3,
        )

    def test_an_optimizer_around_others_ends_one_step(self):
        class All(torch.optim.Optimizer):
            def __init__(self, optimizers):
                self.optimizers = optimizers
                super().__init__([p for o in optimizers for p in o.param_groups[0]["params"]], {})

            def step(self, closure=None):
                for optimizer in self.optimizers:
                    optimizer.step()

        with trellis_neuron.simulate() as run:
            model = mlp()
            optimizer = All([torch.optim.SGD([p], lr=0.1) for p in model.parameters()])
            for fails in (False, True, False):
                model(torch.ones(8, 64, device="neuron")).sum().backward()
                if fails:  # in the middle, and the program goes on
                    hook = optimizer.optimizers[1].register_step_pre_hook(lambda *_: 1 / 0)
                    with self.assertRaises(ZeroDivisionError):
                        optimizer.step()
                    hook.remove()
                else:
                    optimizer.step()
        times = run.report().step_times_ms()
        self.assertEqual(len(times), 2)
        self.assertGreater(min(times), 0)

    def test_the_environment_says_what_is_not_given(self):
        environment = {"NEURON_RT_NUM_CORES": "4", "TRELLIS_INSTANCE": "trn1.32xlarge"}
        with unittest.mock.patch.dict(os.environ, environment):
            with trellis_neuron.simulate():
                self.assertEqual(torch.neuron.device_count(), 4)
                self.assertEqual(torch.neuron.session_options()["instance"], "trn1.32xlarge")
            with trellis_neuron.simulate("trn2.48xlarge", logical_core_size=1):
                options = torch.neuron.session_options()
            self.assertEqual((options["instance"], options["world_size"]), ("trn2.48xlarge", 4))
            with trellis_neuron.simulate(world_size=6):
                self.assertEqual(torch.neuron.device_count(), 6)
        with trellis_neuron.simulate():
            self.assertEqual(torch.neuron.device_count(), 64)

    def test_parts_add_up(self):
        with trellis_neuron.simulate() as run:
            train(2)
        for time, parts in zip(run.report().step_times_ms(), run.report().breakdown_ms()):
            self.assertEqual(tuple(parts), PARTS)
            self.assertAlmostEqual(sum(parts.values()), time, places=6)

    def test_same_program_same_time(self):
        times = []
        for _ in range(2):
            with trellis_neuron.simulate() as run:
                train(2)
            times.append([step["step_time_ps"] for step in run.as_dict()["steps"]])
        self.assertEqual(times[0], times[1])

    def test_larger_model_takes_longer(self):
        def time(width):
            with trellis_neuron.simulate() as run:
                train(2, width)
            return run.report().step_times_ms()[-1]

        self.assertGreater(time(512), time(64))

    def test_manual_steps(self):
        with trellis_neuron.simulate(steps="manual") as run:
            x = torch.ones(64, 64, device="neuron")
            for _ in range(3):
                x @ x
                run.step()
        self.assertEqual(len(run.report().steps), 3)

    def test_a_body_without_steps_is_one(self):
        with trellis_neuron.simulate() as run:
            torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron")
        self.assertEqual(len(run.report().steps), 1)
        self.assertGreater(run.report().step_times_ms()[0], 0)

    def test_model_made_before(self):
        torch.neuron.init()
        model = mlp()
        with trellis_neuron.simulate(
            torch.neuron.session_options()["instance"], torch.neuron.session_options()["nodes"]
        ) as run:
            train(1, model=model)
        self.assertEqual(len(run.report().steps), 1)

    def test_text_and_trace(self):
        with trellis_neuron.simulate() as run:
            train(2)
        self.assertIn("trn2.48xlarge", str(run))
        self.assertIn("memory peak", str(run))
        with tempfile.TemporaryDirectory() as folder:
            run.write_trace(Path(folder, "step.pftrace"))
            self.assertGreater(Path(folder, "step.pftrace").stat().st_size, 100)
            run.write_trace(Path(folder, "step.txt"), format="text")
            self.assertIn("rank 0", Path(folder, "step.txt").read_text())

    def test_two_ranks_driven_by_one_thread(self):
        with trellis_neuron.simulate(steps="manual") as run:
            for device in ("neuron:0", "neuron:1"):
                torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
            run.step()
        self.assertEqual(run.as_dict()["ranks"], [0, 1])
        first, second = (run.report().breakdown_ms(rank)[0] for rank in (0, 1))
        self.assertEqual(first["matmul"], second["matmul"])

    def test_a_simulation_begins_without_steps_of_the_one_before(self):
        def rank_program(rank):
            torch.distributed.init_process_group("neuron")
            value = torch.ones(8, device="neuron") @ torch.ones(8, 8, device="neuron")
            torch.distributed.all_reduce(value)

        with trellis_neuron.simulate("trn1.2xlarge", steps="manual") as two:
            trellis_neuron.run_ranks(lambda rank: (rank_program(rank), two.step()), 2)
        self.assertEqual(two.report().ranks(), [0, 1])
        with trellis_neuron.simulate("trn1.2xlarge", steps="manual") as one:
            (torch.ones(8, device="neuron:0") @ torch.ones(8, 8, device="neuron:0")).sum()
        self.assertEqual(one.report().ranks(), [0])

    def test_memory_peak(self):
        with trellis_neuron.simulate(steps="manual") as run:
            big = torch.ones(1 << 20, device="neuron")
            del big
            run.step()
        self.assertGreaterEqual(run.report().peak_memory_bytes()[0], 4 << 20)


class ShapeOnly(unittest.TestCase):
    def tearDown(self):
        gc.collect()

    def test_same_time_and_memory_as_with_data(self):
        results = []
        for shape_only in (False, True):
            with trellis_neuron.simulate(shape_only=shape_only) as run:
                train(3)
            gc.collect()
            results.append(
                (
                    [s["step_time_ps"] for s in run.as_dict()["steps"]],
                    run.report().peak_memory_bytes(),
                )
            )
        self.assertEqual(results[0], results[1])

    def test_hugging_face_step(self):
        from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

        configurations = (
            (
                LlamaForCausalLM,
                LlamaConfig(
                    vocab_size=32000,
                    hidden_size=1024,
                    intermediate_size=2816,
                    num_hidden_layers=2,
                    num_attention_heads=16,
                    num_key_value_heads=8,
                ),
            ),
            (GPT2LMHeadModel, GPT2Config(n_embd=1024, n_layer=2, n_head=16)),
        )
        for kind, configuration in configurations:
            with (
                self.subTest(kind.__name__),
                trellis_neuron.simulate(shape_only=True, tokens_per_step=4 * 512) as run,
            ):
                with torch.device("neuron"):
                    model = kind(configuration)
                    optimizer = torch.optim.AdamW(model.parameters())
                    ids = torch.zeros(4, 512, dtype=torch.long)
                for _ in range(2):
                    model(input_ids=ids, labels=ids).loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                del model, optimizer, ids
            gc.collect()
            self.assertGreater(run.report().tokens_per_second(), 0)


class Refusals(unittest.TestCase):
    def tearDown(self):
        gc.collect()

    def test_another_machine_while_tensors_live(self):
        with trellis_neuron.simulate("trn2.48xlarge"):
            x = torch.ones(1000, device="neuron")
        with self.assertRaisesRegex(
            RuntimeError, "tensors are alive on it: neuron:0 holds .* B.*gc.collect"
        ):
            with trellis_neuron.simulate("trn1.32xlarge"):
                pass
        del x

    def test_nested(self):
        with trellis_neuron.simulate():
            with self.assertRaisesRegex(RuntimeError, "another simulation is active"):
                with trellis_neuron.simulate():
                    pass

    def test_unknown_machine(self):
        with self.assertRaisesRegex(ValueError, "trn5"):
            with trellis_neuron.simulate("trn5"):
                pass
        with self.assertRaisesRegex(ValueError, 'expected "optimizer" or "manual"'):
            trellis_neuron.simulate(steps="sometimes")

    def test_error_in_the_body_leaves_no_state(self):
        with self.assertRaises(ZeroDivisionError):
            with trellis_neuron.simulate():
                raise ZeroDivisionError
        with trellis_neuron.simulate() as run:
            train(1)
        self.assertEqual(len(run.report().steps), 1)


DATA_PARALLEL = """
import json, sys
import torch
import torch.distributed as dist
import trellis_neuron
from torch.nn.parallel import DistributedDataParallel

def body(rank):
    dist.init_process_group("neuron")
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model = DistributedDataParallel(net.to("neuron"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 64, device="neuron")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

with trellis_neuron.simulate(world_size=2, shape_only=sys.argv[1] == "True") as run:
    trellis_neuron.run_ranks(body, 2)
print(json.dumps(run.as_dict()["steps"]))
"""


class WithoutData(unittest.TestCase):
    def steps(self, shape_only):
        """In a separate process: in one, tensors of the first wrapper may outlive it."""
        command = [sys.executable, "-c", DATA_PARALLEL, str(shape_only)]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_distributed_data_parallel(self):
        with_data, without = self.steps(False), self.steps(True)
        self.assertEqual(len(without), 3)
        for index in (0, 2):  # in step 1 the one with data makes its buckets again
            a, b = with_data[index], without[index]
            self.assertGreater(b["breakdown"][0]["exposed_dp_ps"], 0)
            self.assertAlmostEqual(b["step_time_ps"] / a["step_time_ps"], 1, delta=0.02)


if __name__ == "__main__":
    unittest.main()
