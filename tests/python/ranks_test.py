"""Ranks as threads: collectives, DistributedDataParallel, simulated communication, and what happens
when ranks disagree."""

import contextlib
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist
import trellis_neuron
from torch.nn.parallel import DistributedDataParallel
from trellis_neuron import run_ranks


class Worlds(unittest.TestCase):
    def test_results_by_rank_and_devices(self):
        def body(rank, offset):
            dist.init_process_group("neuron")
            return (
                dist.get_rank(),
                dist.get_world_size(),
                torch.neuron.current_device(),
                rank + offset,
            )

        self.assertEqual(run_ranks(body, 3, 10), [(r, 3, r, r + 10) for r in range(3)])
        self.assertFalse(dist.is_initialized())

    def test_worlds_end(self):
        """A second run, a group made and destroyed by the rank itself."""

        def body(rank):
            dist.init_process_group("neuron")
            dist.destroy_process_group()
            return dist.is_initialized()

        self.assertEqual(run_ranks(body, 2), [False, False])
        self.assertEqual(run_ranks(body, 2), [False, False])

    def test_wrong_sizes(self):
        with self.assertRaisesRegex(ValueError, "expected a world size of 1 to"):
            run_ranks(lambda rank: None, 1000)

    def test_ranks_in_ranks(self):
        with self.assertRaisesRegex(RuntimeError, "cannot start ranks itself"):
            run_ranks(lambda rank: run_ranks(lambda r: None, 1), 2)

    def test_seed_of_a_rank_leaves_the_others(self):
        def body(rank):
            torch.neuron.manual_seed_all(rank)
            return torch.rand(4, device="neuron").tolist()

        numbers = run_ranks(body, 3)
        self.assertEqual(
            numbers,
            [torch.rand(4, generator=torch.Generator().manual_seed(r)).tolist() for r in range(3)],
        )

    def test_main_thread_uses_the_ranks_tensors_afterwards(self):
        tensors = run_ranks(lambda rank: torch.full((4,), float(rank), device="neuron"), 3)
        self.assertEqual([t.sum().item() for t in tensors], [0.0, 4.0, 8.0])


def collectives(rank):
    dist.init_process_group("neuron")
    size, device = dist.get_world_size(), "neuron"
    mine = torch.arange(4.0, device=device) + rank
    seen = {}
    total = mine.clone()
    dist.all_reduce(total)
    seen["all_reduce"] = total.tolist()
    highest = mine.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    seen["max"] = highest.tolist()
    gathered = torch.empty(4 * size, device=device)
    dist.all_gather_into_tensor(gathered, mine)
    seen["all_gather"] = gathered.tolist()
    listed = [torch.empty(4, device=device) for _ in range(size)]
    dist.all_gather(listed, mine)
    seen["all_gather_list"] = torch.cat(listed).tolist()
    shard = torch.empty(4, device=device)
    dist.reduce_scatter_tensor(shard, gathered)
    seen["reduce_scatter"] = shard.tolist()
    sent = mine.clone()
    dist.broadcast(sent, src=1)
    seen["broadcast"] = sent.tolist()
    swapped = torch.empty(4, device=device)
    dist.all_to_all_single(swapped, mine) if size in (2, 4) else swapped.copy_(mine)
    seen["all_to_all"] = swapped.tolist()
    around = torch.empty(4, device=device)
    work = dist.isend(mine, (rank + 1) % size)
    dist.recv(around, (rank - 1) % size)
    work.wait()
    seen["ring"] = around.tolist()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    seen["objects"] = objects
    pair = (
        [dist.new_group([0, 1]), dist.new_group(list(range(2, size)))][rank // 2]
        if size > 2
        else dist.new_group([0, 1])
    )
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones, group=pair)
    seen["subgroup"] = ones.item()
    dist.barrier()
    return seen


def expected_collectives(size):
    each = [[float(i + r) for i in range(4)] for r in range(size)]
    flat = [x for row in each for x in row]
    rows = []
    for rank in range(size):
        per = 4 // size if size in (2, 4) else 4
        swapped = (
            [each[r][rank * per + i] for r in range(size) for i in range(per)]
            if size in (2, 4)
            else each[rank]
        )
        rows.append(
            {
                "all_reduce": [sum(column) for column in zip(*each)],
                "max": each[-1],
                "all_gather": flat,
                "all_gather_list": flat,
                "reduce_scatter": [size * x for x in each[rank]],
                "broadcast": each[1],
                "all_to_all": swapped,
                "ring": each[(rank - 1) % size],
                "objects": [{"rank": r} for r in range(size)],
                "subgroup": 2.0,
            }
        )
    return rows


class Collectives(unittest.TestCase):
    def test_values(self):
        for size in (2, 4):
            self.assertEqual(run_ranks(collectives, size), expected_collectives(size))

    def test_functional_collectives(self):
        import torch.distributed._functional_collectives as functional

        def body(rank):
            dist.init_process_group("neuron")
            return functional.all_reduce(
                torch.ones(2, device="neuron") * (rank + 1), "sum", dist.group.WORLD
            ).tolist()

        self.assertEqual(run_ranks(body, 3), [[6.0, 6.0]] * 3)


def model(dtype):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(
        dtype
    )


def data(dtype):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 16, generator=generator, dtype=dtype), torch.randn(
        8, 4, generator=generator, dtype=dtype
    )


def fit(module, x, y, steps=5):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    return [p.detach().cpu() for p in module.parameters()]


class DataParallel(unittest.TestCase):
    def test_four_ranks_equal_one(self):
        module, (x, y) = model(torch.float64), data(torch.float64)
        weights = {key: value.clone() for key, value in module.state_dict().items()}

        def body(rank):
            dist.init_process_group("neuron")
            mine = torch.nn.Sequential(
                torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
            ).double()
            if rank == 0:
                mine.load_state_dict(weights)  # the others get theirs from rank 0
            parallel = DistributedDataParallel(mine.to("neuron"))
            rows = slice(2 * rank, 2 * rank + 2)
            return fit(parallel, x[rows].to("neuron"), y[rows].to("neuron"))

        whole = fit(module.to("neuron"), x.to("neuron"), y.to("neuron"))
        for parameters in run_ranks(body, 4):
            for expected, got in zip(whole, parameters):
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)

    def test_simulated_step_has_communication(self):
        def body(rank):
            dist.init_process_group("neuron")
            parallel = DistributedDataParallel(torch.nn.Linear(64, 64).to("neuron"))
            fit(
                parallel,
                torch.ones(4, 64, device="neuron"),
                torch.ones(4, 64, device="neuron"),
                steps=3,
            )

        with trellis_neuron.simulate() as run:
            run_ranks(body, 4)
        self.assertEqual(len(run.report().steps), 3)
        self.assertEqual(run.report().ranks(), [0, 1, 2, 3])
        self.assertGreater(run.report().breakdown_ms(0)[-1]["exposed_dp"], 0)
        self.assertTrue(run.as_dict()["steps"][-1]["links"], "bytes moved between the cores")


class Disagreements(unittest.TestCase):
    """Every rank gets an exception; run_ranks() raises one that names rank, operation, sequence
    number, expected and got."""

    world = contextlib.nullcontext

    def failures_of(self, body, size=3, **options):
        caught, lock = {}, threading.Lock()

        def catching(rank):
            dist.init_process_group("neuron")
            try:
                body(rank)
            except Exception as error:
                with lock:
                    caught[rank] = str(error)
                raise

        with self.assertRaises(RuntimeError) as raised, self.world():
            run_ranks(catching, size, **options)
        return str(raised.exception), caught

    def test_shapes(self):
        reported, caught = self.failures_of(
            lambda rank: dist.all_reduce(torch.ones(4 if rank else 5, device="neuron"))
        )
        self.assertEqual(sorted(caught), [0, 1, 2])
        for text in ("rank 0", "all-reduce", "expected", "got", "4", "5"):
            self.assertIn(text, reported)

    def test_dtypes(self):
        reported, caught = self.failures_of(
            lambda rank: dist.all_reduce(
                torch.ones(4, device="neuron", dtype=torch.bfloat16 if rank == 2 else torch.float32)
            )
        )
        self.assertEqual(sorted(caught), [0, 1, 2])
        self.assertRegex(reported, "(?i)bfloat16")

    def test_order(self):
        def body(rank):
            dist.all_reduce(torch.ones(1, device="neuron"))
            if rank == 1:
                dist.barrier()
            dist.broadcast(torch.ones(4, device="neuron"), src=0)

        reported, caught = self.failures_of(body)
        self.assertEqual(sorted(caught), [0, 1, 2])
        for text in ("barrier", "broadcast", "1"):
            self.assertIn(text, reported)

    def test_missing_rank(self):
        reported, caught = self.failures_of(
            lambda rank: rank == 2 or dist.all_reduce(torch.ones(1, device="neuron"))
        )
        self.assertEqual(sorted(caught), [0, 1])
        self.assertIn("2", reported)

    def test_failing_rank_wakes_the_others(self):
        def body(rank):
            if rank == 1:
                raise ValueError("the data of rank 1 are bad")
            dist.barrier()

        with self.assertRaisesRegex(ValueError, "the data of rank 1 are bad"):
            run_ranks(lambda rank: (dist.init_process_group("neuron"), body(rank)), 3)

    def test_late_rank_is_named_in_time(self):
        release = threading.Event()

        def body(rank):
            if rank == 1:
                release.wait(20)
            try:
                dist.barrier()
            finally:
                release.set()

        reported, _ = self.failures_of(body, size=2, timeout_s=0.5)
        self.assertIn("rank 1", reported)

    def test_use_after_shutdown(self):
        def body(rank):
            dist.init_process_group("neuron")
            group = dist.group.WORLD
            dist.barrier()
            dist.destroy_process_group()
            try:
                group.allreduce([torch.ones(1, device="neuron")]).wait()
            except RuntimeError as error:
                return str(error)

        for reported in run_ranks(body, 2):
            self.assertRegex(
                reported, "all-reduce of rank . in world .*after the group was shut down"
            )
        with self.assertRaisesRegex(ValueError, "has not been initialized"):
            dist.all_reduce(torch.ones(1, device="neuron"))


def notes(error):
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


class Faults(unittest.TestCase):
    """What would hang on a machine is an error here, whether anybody waited or not."""

    world = contextlib.nullcontext

    def fault(self, body, size=3):
        with (
            self.assertRaisesRegex(RuntimeError, "communication mismatch") as raised,
            self.world(),
        ):
            run_ranks(lambda rank: (dist.init_process_group("neuron"), body(rank)), size)
        return str(raised.exception)

    def test_send_without_a_receiver(self):
        text = self.fault(lambda rank: rank or dist.send(torch.ones(4, device="neuron"), 2))
        self.assertRegex(text, "send of 4 Float.*: rank 0 did it, rank 2 did not")

    def test_receive_and_collective_without_a_wait(self):
        text = self.fault(lambda rank: rank or dist.irecv(torch.ones(4, device="neuron"), 1))
        self.assertRegex(text, "receive of 4 Float.*: rank 0 did it, rank 1 did not")
        text = self.fault(
            lambda rank: rank or dist.all_reduce(torch.ones(4, device="neuron"), async_op=True)
        )
        self.assertRegex(text, "all-reduce.*: rank 0 did it, rank 1, 2 did not")

    def test_group_that_a_rank_skips(self):
        for skips in (1, 2):  # a member of it; a rank that only must call
            text = self.fault(lambda rank, skips=skips: rank == skips or dist.new_group([0, 1]))
            self.assertRegex(
                text,
                r"rank 0 made group 2 at .*ranks_test.py:\d+ in <lambda>: `.*new_group.*`, "
                rf"rank {skips} made 1 groups",
            )

    def test_exception_names_its_rank(self):
        def body(rank):
            if rank == 2:
                raise ValueError("bad data")

        with self.assertRaisesRegex(ValueError, "bad data") as raised:
            run_ranks(body, 3)
        self.assertIn("raised by rank 2", notes(raised.exception))


class SimulatedDisagreements(Disagreements):
    world = staticmethod(trellis_neuron.simulate)


class SimulatedFaults(Faults):
    world = staticmethod(trellis_neuron.simulate)


BUSY = """
import sys, time
import torch, torch.distributed as dist, trellis_neuron

def busy_loop():
    while True:
        pass

def holds_the_lock_of_python():
    import re
    re.match("(a+)+$", "a" * 64 + "b")  # for years

def sleeps():
    time.sleep(600)

def body(rank):
    dist.init_process_group("neuron")
    if rank == 1:
        globals()[sys.argv[1]]()
    dist.barrier()

def overflows_the_stack():
    dist.barrier()  # so that the record of each rank has an entry
    sys.setrecursionlimit(10**9)
    call = lambda _: list(map(call, [0]))  # through C: a function of Python alone needs no stack
    call(0)

try:
    trellis_neuron.run_ranks(body, 3, timeout_s=0.5, on_hang=sys.argv[2])
except RuntimeError as error:
    print("\\n".join([str(error), *error.__notes__]))
"""


class Stuck(unittest.TestCase):
    """A rank that never comes is reported on time whatever it does, with its stacks."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_busy(self, what, on_hang):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", BUSY, what, on_hang],
            env={**os.environ, "TORCH_FR_DUMP_TEMP_FILE": str(self.folder / "rank_")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertLess(
            time.monotonic() - began,
            60,
            "the report comes 1.5 s after the start of the ranks; the rest is for a loaded machine",
        )
        return done

    def test_busy_python_loop_is_reported_and_ended(self):
        done = self.run_busy("busy_loop", "raise")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("communication hang", "missing: rank 1", " in busy_loop"):
            self.assertIn(text, done.stdout)
        # The rank that found the hang first may have left its barrier when the stacks are taken.
        self.assertRegex(done.stdout, "rank [02]: <string>:20 in body")
        self.assertNotIn("could not be ended", done.stdout)
        self.assertIn("of world [0, 1, 2] (not complete), at <string>:20 (body)", done.stdout)
        self.check_records(done.stdout)

    def check_records(self, text):
        """PyTorch's analyzer names the rank, and each entry has the line that called it."""
        self.assertIn(f"flight recorder of ranks 0 to 2: {self.folder}", text)
        analyzer = "torch.distributed.flight_recorder.fr_trace"
        done = subprocess.run(
            [sys.executable, "-m", analyzer, str(self.folder)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        said = done.stdout + done.stderr
        self.assertIn("missing ranks: {1}", said)
        self.assertIn("body at <string>:20", said)
        dump = pickle.loads((self.folder / "rank_0").read_bytes())
        frames = [entry["frames"][0] for entry in dump["entries"]]
        self.assertEqual({frame["name"] for frame in frames}, {"body"})
        self.assertGreater((self.folder / "trace_of_the_end.pftrace").stat().st_size, 100)

    def test_native_code_is_reported_and_left(self):
        done = self.run_busy("sleeps", "raise")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("<string>:14 in sleeps", done.stdout)
        self.assertIn("rank 1 could not be ended", done.stdout)

    def test_an_overflown_stack_leaves_dumps(self):
        done = self.run_busy("overflows_the_stack", "raise")
        self.assertEqual(done.returncode, -signal.SIGSEGV, done.stderr)
        self.assertIn("error: the process crashes: signal 11", done.stderr)
        self.assertEqual(done.stderr.count("flight recorder of ranks 0 to 2"), 1, done.stderr)
        dump = pickle.loads((self.folder / "rank_0").read_bytes())
        self.assertIn("barrier", dump["entries"][-1]["profiling_name"])

    def test_native_code_that_holds_pythons_lock(self):
        done = self.run_busy("holds_the_lock_of_python", "exit")
        self.assertEqual(done.returncode, 4, done.stderr)
        for text in (
            "communication hang",
            "rank 1 goes on all the same",
            "native stack",
            "(libc.so",
            'File "<string>", line 11 in holds_the_lock_of_python',
        ):
            self.assertIn(text, done.stderr)
        self.assertTrue((self.folder / "rank_1").exists())


if __name__ == "__main__":
    unittest.main()
