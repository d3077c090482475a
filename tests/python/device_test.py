"""torch.neuron: TorchNeuron's names, and that they answer for the emulated machine."""

import functools
import io
import threading
import unittest

import torch
import trellis_neuron  # noqa: F401
from fresh import run_python

NAMES = """is_available is_initialized init device_count current_device set_device device
get_device_name get_device_properties synchronize Stream Event stream current_stream
default_stream set_stream manual_seed manual_seed_all seed seed_all initial_seed
get_rng_state set_rng_state get_amp_supported_dtype is_bf16_supported mem_get_info
_is_in_bad_fork memory_stats
memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_summary
reset_peak_memory_stats reset_accumulated_memory_stats empty_cache""".split()


class Names(unittest.TestCase):
    def test_all_there(self):
        self.assertEqual([name for name in NAMES if not hasattr(torch.neuron, name)], [])
        self.assertTrue(torch.neuron.is_available())
        self.assertEqual(torch.accelerator.current_accelerator().type, "neuron")

    def test_generated_methods(self):
        tensor = torch.arange(4.0).neuron()
        self.assertTrue(tensor.is_neuron)
        self.assertEqual(torch.nn.Linear(2, 2).neuron().weight.device.type, "neuron")


class FakeTensors(unittest.TestCase):
    def test_attention(self):
        with torch._subclasses.FakeTensorMode():
            query = torch.randn(1, 2, 3, 8, device="neuron")
            output = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        self.assertEqual(output.shape, query.shape)


class Devices(unittest.TestCase):
    def setUp(self):
        torch.neuron.set_device(0)

    def test_default_machine(self):
        options = torch.neuron.session_options()
        self.assertEqual((options["instance"], options["nodes"]), ("trn2.48xlarge", 1))
        self.assertEqual(torch.neuron.device_count(), options["logical_cores"])
        properties = torch.neuron.get_device_properties()
        self.assertEqual(properties.total_memory, options["memory_per_core_bytes"])
        self.assertEqual(properties.name, "trn2")
        # torchtitan looks for the word, then takes the properties' name.
        self.assertEqual(torch.neuron.get_device_name("neuron:1"), "neuron trn2 (trn2.48xlarge)")

    def test_current_device(self):
        torch.neuron.set_device("neuron:2")
        self.assertEqual(torch.zeros(1, device="neuron").device, torch.device("neuron:2"))
        with torch.neuron.device(1):
            self.assertEqual(torch.neuron.current_device(), 1)
            with torch.neuron.device(None):
                self.assertEqual(torch.neuron.current_device(), 1)
        self.assertEqual(torch.neuron.current_device(), 2)

    def test_names_that_pytorch_and_torchtitan_read(self):
        torch.neuron.reset_peak_memory_stats()
        peak = torch.neuron.max_memory_allocated()
        stats = torch.neuron.memory_stats()
        self.assertEqual(stats["allocated_bytes.all.peak"], peak)
        for name in ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries"):
            self.assertIn(name, stats)
        torch.neuron.memory._record_memory_history(max_entries=100)
        self.assertIn("segments", torch.neuron.memory._snapshot())
        torch.neuron.memory._record_memory_history(None)

    def test_device_of_another_kind_or_index(self):
        with self.assertRaisesRegex(ValueError, "expected a neuron device, got cpu"):
            torch.neuron.set_device("cpu")
        with self.assertRaisesRegex(RuntimeError, "invalid device index 100.*expected 0 to"):
            torch.zeros(1, device="neuron:100")

    def test_current_device_is_per_thread(self):
        torch.neuron.set_device(3)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
        thread.start()
        thread.join()
        self.assertEqual((seen, torch.neuron.current_device()), ([0], 3))

    def test_backward_runs_on_the_calling_thread_of_any_thread(self):
        ran_on = []

        def body():
            x = torch.ones(2, device="neuron:5", requires_grad=True)
            y = 2 * x
            y.register_hook(lambda grad: ran_on.append(threading.get_ident()))
            y.sum().backward()
            ran_on.append(threading.get_ident())

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        self.assertEqual(len(ran_on), 2)
        self.assertEqual(ran_on[0], ran_on[1])


class LazyClones(unittest.TestCase):
    """They share bytes until one of both is written."""

    def check(self, write):
        for first in (0, 1):
            both = [torch.arange(4.0, device="neuron")]
            both.append(both[0]._lazy_clone())
            both[0] + both[1]
            self.assertTrue(all(map(torch._C._is_cow_tensor, both)), "reading copies nothing")
            write(both[first].view(2, 2))
            self.assertFalse(torch.equal(both[first].cpu(), torch.arange(4.0)))
            self.assertEqual(both[1 - first].tolist(), [0, 1, 2, 3])

    def test_operators_copies_and_lists_that_write(self):
        self.check(lambda x: x.add_(1))
        self.check(lambda x: torch.add(x, x, out=x))
        self.check(lambda x: x.copy_(torch.ones(2, 2)))
        self.check(lambda x: x.zero_())
        self.check(lambda x: torch._foreach_add_([x], 1))
        self.check(lambda x: x[0].fill_(7))


class UndefinedGradients(unittest.TestCase):
    def test_attention_whose_output_has_none_has_none_for_its_inputs(self):
        """As gradcheck asks for it."""
        q = torch.ones(1, 4, 5, 8, device="neuron", requires_grad=True)
        k = torch.ones(1, 2, 5, 8, device="neuron", requires_grad=True)
        for query, grouped in ((k, False), (q, True)):
            y = torch.nn.functional.scaled_dot_product_attention(
                query, k, k, is_causal=True, enable_gqa=grouped
            )
            self.assertIn("FusedAttention", y.grad_fn.name())
            none = torch._C._functions.UndefinedGrad()(y)
            grads = torch.autograd.grad(none, [query, k], torch.zeros_like(y), allow_unused=True)
            self.assertEqual(grads, (None, None))


class StreamsAndEvents(unittest.TestCase):
    def test_streams(self):
        self.assertEqual(torch.neuron.current_stream(), torch.neuron.default_stream())
        with torch.neuron.stream(torch.neuron.Stream()):
            torch.ones(4, device="neuron").add_(1)
        torch.neuron.synchronize()
        self.assertEqual(torch.neuron.current_stream(), torch.neuron.default_stream())

    def test_events(self):
        start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
        start.record(torch.neuron.current_stream())
        torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron")
        end.record(torch.neuron.current_stream())
        end.synchronize()
        self.assertTrue(end.query())
        self.assertGreater(start.elapsed_time(end), 0)
        before = torch.neuron.simulated_time_ps()
        torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron")
        self.assertGreater(torch.neuron.simulated_time_ps(), before)


class Randomness(unittest.TestCase):
    def test_numbers_of_the_cpu(self):
        torch.manual_seed(11)
        expected = torch.randn(100)
        torch.manual_seed(11)
        self.assertTrue(torch.equal(torch.randn(100, device="neuron").cpu(), expected))

    def test_generators_are_per_device(self):
        torch.neuron.manual_seed_all(3)
        first = torch.rand(8, device="neuron:0").cpu()
        self.assertTrue(torch.equal(torch.rand(8, device="neuron:1").cpu(), first))
        self.assertFalse(torch.equal(torch.rand(8, device="neuron:0").cpu(), first))
        self.assertEqual(torch.neuron.initial_seed(), 3)

    def test_state(self):
        state = torch.neuron.get_rng_state("neuron:1")
        first = torch.rand(8, device="neuron:1").cpu()
        torch.neuron.set_rng_state(state, "neuron:1")
        self.assertTrue(torch.equal(torch.rand(8, device="neuron:1").cpu(), first))

    DRAWS = (
        lambda: torch.randn(3, device="neuron"),  # keeps the second half of a pair
        lambda: torch.randn(700, device="neuron"),
        lambda: torch.rand(5000, device="neuron"),
        lambda: torch.rand(7, dtype=torch.float64, device="neuron"),
        lambda: torch.nn.functional.dropout(torch.ones(40, device="neuron"), 0.4),
        lambda: torch.randint(9, (5,), device="neuron"),
        lambda: torch.ones(6, device="neuron").exponential_(),
        lambda: torch._standard_gamma(torch.ones(3, device="neuron")),
        lambda: torch.randperm(623, device="neuron"),
        lambda: torch.ones(3, device="neuron").log_normal_(),
    )

    def test_a_state_is_a_place(self):
        """Wherever it was taken, and whatever was drawn since: 16 bytes give the same numbers."""
        order = torch.Generator().manual_seed(5)
        picks = torch.randint(len(self.DRAWS), (60,), generator=order).tolist()
        torch.neuron.manual_seed(77)
        states, drawn = [], []
        for pick in picks:
            states.append(torch.neuron.get_rng_state())
            drawn.append(self.DRAWS[pick]().cpu())
        self.assertEqual({tuple(state.shape) for state in states}, {(16,)})
        self.assertEqual(len({tuple(state.tolist()) for state in states}), len(states))
        for begin in (0, 17, 3, 44, 59, 17):
            torch.neuron.manual_seed(1)
            torch.neuron.set_rng_state(states[begin])
            self.assertEqual(torch.neuron.initial_seed(), 77)
            for pick, state, expected in list(zip(picks, states, drawn))[begin : begin + 8]:
                self.assertTrue(torch.equal(torch.neuron.get_rng_state(), state))
                self.assertTrue(torch.equal(self.DRAWS[pick]().cpu(), expected))

    def test_states_of_the_cpu_are_taken(self):
        """As those that earlier versions saved."""
        cpu = torch.Generator().manual_seed(9)
        torch.rand(2000, generator=cpu)
        torch.neuron.set_rng_state(cpu.get_state())
        state = torch.neuron.get_rng_state()
        expected = torch.rand(50, generator=cpu)
        for _ in range(2):
            self.assertTrue(torch.equal(torch.rand(50, device="neuron").cpu(), expected))
            torch.neuron.set_rng_state(state)
        with self.assertRaises(RuntimeError):
            torch.neuron.set_rng_state(torch.zeros(17, dtype=torch.uint8))

    def test_an_offset_counts_elements(self):
        """As distributed tensors add it: ranges of as many elements share no number."""
        torch.neuron.manual_seed(3)
        state = torch.neuron.get_rng_state()
        parts = []
        for _ in range(3):
            torch.neuron.set_rng_state(state)
            parts.append(torch.randn(1000, device="neuron", dtype=torch.float64).cpu())
            state[8:].view(torch.int64)[0] += 1000
        self.assertEqual(torch.cat(parts).unique().numel(), 3000)

    def test_checkpoints_repeat_dropout(self):
        def gradients(run):
            torch.manual_seed(1)
            net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5)).to("neuron")
            x = torch.ones(4, 16, device="neuron", requires_grad=True)
            run(net, x).sum().backward()
            return [x.grad.cpu()] + [p.grad.cpu() for p in net.parameters()]

        expected = gradients(lambda net, x: net(x))
        for reentrant in (True, False):
            checkpoint = functools.partial(
                torch.utils.checkpoint.checkpoint, use_reentrant=reentrant
            )
            got = gradients(checkpoint)
            for a, b in zip(got, expected):
                self.assertTrue(torch.equal(a, b), reentrant)

    def test_default_generators(self):
        generators = torch.neuron.default_generators
        self.assertEqual(len(generators), torch.neuron.device_count())
        generators[1].manual_seed(6)
        self.assertEqual(torch.neuron.initial_seed("neuron:1"), 6)

    def test_large_seed(self):
        torch.neuron.manual_seed(2**64 - 5)
        self.assertEqual(torch.neuron.initial_seed(), 2**64 - 5)

    def test_fork_rng(self):
        before = torch.neuron.get_rng_state()
        with torch.random.fork_rng(devices=[0], device_type="neuron"):
            torch.rand(8, device="neuron")
        self.assertTrue(torch.equal(torch.neuron.get_rng_state(), before))


class Serialization(unittest.TestCase):
    def test_round_trips(self):
        file = io.BytesIO()
        torch.save({"w": torch.arange(6.0, device="neuron:1").view(2, 3)}, file)
        for map_location, device in ((None, "neuron:1"), ("cpu", "cpu"), ("neuron:2", "neuron:2")):
            file.seek(0)
            loaded = torch.load(file, map_location=map_location)["w"]
            self.assertEqual(loaded.device, torch.device(device))
            self.assertTrue(torch.equal(loaded.cpu(), torch.arange(6.0).view(2, 3)))

    def test_load_from_cpu(self):
        file = io.BytesIO()
        torch.save(torch.ones(3), file)
        file.seek(0)
        self.assertEqual(torch.load(file, map_location="neuron").device.type, "neuron")


class Memory(unittest.TestCase):
    def test_counts(self):
        before = torch.neuron.memory_allocated()
        tensor = torch.zeros(1 << 20, device="neuron:0")
        self.assertGreaterEqual(torch.neuron.memory_allocated() - before, 4 << 20)
        self.assertGreaterEqual(
            torch.neuron.max_memory_allocated(), torch.neuron.memory_allocated()
        )
        self.assertGreaterEqual(torch.neuron.memory_reserved(), torch.neuron.memory_allocated())
        del tensor
        self.assertEqual(torch.neuron.memory_allocated(), before)
        torch.neuron.empty_cache()
        self.assertLess(torch.neuron.memory_reserved(), 4 << 20)
        torch.neuron.reset_peak_memory_stats()
        self.assertIn("allocated_bytes.peak", torch.neuron.memory_summary())

    def test_snapshot_and_timeline(self):
        torch.neuron.keep_memory_events(100)
        tensor = torch.zeros(1 << 20, device="neuron:0")
        blocks = [
            b
            for s in torch.neuron.memory_snapshot()["segments"]
            for b in s["blocks"]
            if b["state"] == "active_allocated"
        ]
        self.assertIn(4 << 20, [block["size"] for block in blocks])
        self.assertTrue(torch.neuron.memory_timeline()["events"])
        torch.neuron.keep_memory_events(0)
        del tensor

    def test_out_of_memory(self):
        with self.assertRaises(torch.OutOfMemoryError) as raised:
            torch.empty(1 << 40, dtype=torch.uint8, device="neuron:0")
        self.assertIn(str(torch.neuron.get_device_properties().total_memory), str(raised.exception))
        self.assertEqual(torch.ones(3, device="neuron:0").sum().item(), 3)


class Sessions(unittest.TestCase):
    """Each in a separate process: a session belongs to the whole process."""

    def succeed(self, code, **environment):
        done = run_python("import torch, trellis_neuron\n" + code, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.strip()

    def test_environment(self):
        reported = self.succeed(
            "o = torch.neuron.session_options(); print(o['instance'], o['nodes'], "
            "o['shape_only'], torch.neuron.device_count())",
            TRELLIS_INSTANCE="trn1.32xlarge",
            TRELLIS_NODES="2",
            TRELLIS_SHAPE_ONLY="1",
        )
        self.assertEqual(reported, "trn1.32xlarge 2 True 64")
        self.assertEqual(
            self.succeed("print(torch.neuron.device_count())", NEURON_RT_NUM_CORES="3"), "3"
        )
        self.assertEqual(
            self.succeed("print(torch.neuron.device_count())", NEURON_RT_VISIBLE_CORES="0,4-7"), "5"
        )
        self.assertEqual(
            self.succeed("print(torch.neuron.device_count())", NEURON_LOGICAL_NC_CONFIG="1"), "127"
        )

    def test_wrong_environment(self):
        for name, value, reported in (
            ("TRELLIS_INSTANCE", "trn9", "trn9"),
            ("TRELLIS_NODES", "0", "TRELLIS_NODES: expected a whole number"),
            ("TRELLIS_SHAPE_ONLY", "yes", "TRELLIS_SHAPE_ONLY: expected 0 or 1, got"),
            ("NEURON_RT_VISIBLE_CORES", "3-1", "NEURON_RT_VISIBLE_CORES: expected cores such as"),
            ("NEURON_RT_NUM_CORES", "999", "999 cores, the machine has 64"),
        ):
            done = run_python(
                "import torch, trellis_neuron; torch.zeros(1, device='neuron')", **{name: value}
            )
            self.assertNotEqual(done.returncode, 0, name)
            self.assertIn(reported, done.stderr)

    def test_configure_again(self):
        self.succeed("""
x = torch.ones(1000, device="neuron:2")
try:
    torch.neuron.configure("trn1.32xlarge")
    raise SystemExit("no error")
except RuntimeError as error:
    assert "neuron:2 holds" in str(error) and "gc.collect()" in str(error), error
assert x.sum().item() == 1000
del x
generator = torch.Generator("neuron:1")
torch.neuron.manual_seed_all(5)
torch.neuron.configure("trn1.32xlarge")
assert torch.neuron.session_options()["instance"] == "trn1.32xlarge"
assert torch.neuron.device_count() == 32
assert torch.neuron.initial_seed("neuron:1") == 5
assert torch.ones(3, device="neuron:31").sum().item() == 3
torch.ones(2, device="neuron:1").uniform_(generator=generator)
try:
    torch.neuron.configure("trn7.big")
    raise SystemExit("no error")
except ValueError as error:
    assert "trn7.big" in str(error), error
assert torch.neuron.device_count() == 32
""")

    def test_import_configures_nothing(self):
        self.assertEqual(self.succeed("print(torch.neuron.is_initialized())"), "False")

    def test_fork(self):
        """Every public function of torch.neuron refuses in a process forked after the device was
        used, but those that say what there is."""
        self.succeed("""
import inspect, os, sys
state, stream = torch.neuron.get_rng_state(), torch.neuron.current_stream()
there = torch.ones(3, device="neuron")
arguments = {"set_device": [0], "manual_seed": [1], "manual_seed_all": [1],
             "set_rng_state": [state], "set_rng_state_all": [[state]], "set_stream": [stream],
             "stream": [stream], "keep_memory_events": [5], "configure_default": [2], "device": [0],
             "device_of": [state.to("neuron")]}
answer = {"is_available", "is_initialized", "get_amp_supported_dtype", "is_bf16_supported",
          "DeviceProperties"}
own = {name for name, value in vars(torch.neuron).items()
       if not name.startswith("_") and callable(value)
       and getattr(value, "__module__", "").startswith("trellis_neuron.")
       and not name.endswith("_in_fork") and name not in ("in_bad_fork", "index_of")}
assert {"synchronize", "empty_cache", "memory_allocated", "current_device"} <= own, own
assert not answer - own, own

def refuses(name):
    try:
        result = getattr(torch.neuron, name)(*arguments.get(name, []))
        if hasattr(result, "__enter__") and name != "Stream":
            result.__enter__()
    except RuntimeError as error:
        return "Cannot re-initialize neuron in a forked subprocess" in str(error)
    return False

child = os.fork()
if child == 0:
    wrong = [name for name in sorted(own - answer) if not refuses(name)]
    print("not refused:", wrong, file=sys.stderr, flush=True)
    is_bad = torch.neuron._is_in_bad_fork() and not torch.neuron.is_initialized()
    for use in (lambda: torch.ones(3, device="neuron"), lambda: there + there, there.cpu,
                lambda: torch.empty(0, device="neuron:1"), lambda: there.view(3, 1) * 2):
        try:
            use()
            wrong.append(use)
        except RuntimeError as error:
            if "Cannot re-initialize neuron in a forked subprocess" not in str(error):
                wrong.append(error)
    print("not refused:", wrong, file=sys.stderr, flush=True)
    os._exit(7 if not wrong and is_bad else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
torch.neuron.synchronize()  # the parent goes on
""")

    def test_fork_before_use(self):
        self.succeed("""
import os
child = os.fork()
if child == 0:
    os._exit(int(torch.ones(3, device="neuron").sum().item()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
""")


if __name__ == "__main__":
    unittest.main()
