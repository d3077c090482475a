"""One process per rank: Gloo carries the bytes, results equal those of one rank with the whole
batch."""

import ctypes
import gc
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import timedelta
from pathlib import Path

import hang_kinds
import process_programs
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

SIZE = 2
PROGRAMS = 30  # process_programs.py 1000: the whole set


def spawn(body, *arguments):
    """A process per rank. They are forked from one that has imported torch and nothing of ours."""
    multiprocessing.set_forkserver_preload(["torch", "torch.nn.parallel"])
    processes.start_processes(body, arguments, nprocs=SIZE, start_method="forkserver")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
    ).double()


def fit(module, x, y):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    return [p.detach().cpu() for p in module.parameters()]


def data():
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(SIZE * 2, n, generator=generator, dtype=torch.float64) for n in (8, 2))


def join(rank, port, timeout=None):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(SIZE),
        LOCAL_WORLD_SIZE=str(SIZE),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import trellis_neuron  # noqa: F401

    dist.init_process_group("neuron", timeout=timeout)


def wrong_process(rank, ports, folder, kinds):
    """One kind after the other, each in its own world."""
    join(rank, ports.pop(), timedelta(seconds=60))  # processes that start late are not lost
    dist.destroy_process_group()
    for kind, port in zip(kinds, ports):
        join(rank, port, timedelta(seconds=hang_kinds.TIMEOUT_S))
        dist.barrier()
        began, said = time.monotonic(), "nothing"
        try:
            kind(rank)
            dist.destroy_process_group()
        except RuntimeError as error:
            said = str(error)
        took = time.monotonic() - began
        Path(folder, f"{kind.__name__}.{rank}").write_text(json.dumps([took, said]))
        if dist.is_initialized():
            dist.destroy_process_group()


def leaving_process(rank, port, folder):
    """Ends without a word on rank 1."""
    join(rank, port, timedelta(seconds=60))
    group = dist.new_group(timeout=timedelta(seconds=hang_kinds.TIMEOUT_S))
    if rank == 1:
        os._exit(0)
    began, said = time.monotonic(), "nothing"
    try:
        dist.all_reduce(torch.ones(4, device="neuron"), group=group)
    except RuntimeError as error:
        said = str(error)
    Path(folder, "said").write_text(json.dumps([time.monotonic() - began, said]))
    os._exit(0)


def other_thread_process(rank, port):
    """Threads of a program may communicate; each waits for itself."""
    import threading

    join(rank, port, timedelta(seconds=30))
    group = dist.new_group([0, 1])
    x, y = (torch.full((4,), float(rank + 1), device="neuron") for _ in range(2))

    def reduce_twice():
        for _ in range(2):
            dist.all_reduce(y, group=group)

    thread = threading.Thread(target=reduce_twice)
    if rank == 0:
        thread.start()
        dist.all_reduce(x)
    else:
        reduce_twice()
        time.sleep(0.5)
        dist.all_reduce(x)
    if rank == 0:
        thread.join()
    assert x.tolist() == [3.0] * 4 and y.tolist() == [6.0] * 4, (x, y)
    dist.destroy_process_group()


def stays_away(folder):
    """Until what its process did last is in a file."""
    deadline = time.monotonic() + 20
    while not Path(folder, "rank_1").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # the other one asks for it


def hanging_process(rank, port, folder):
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(Path(folder, "rank_"))
    join(rank, port)
    # Not the first group's: processes that start late would be taken for lost.
    group = dist.new_group(timeout=timedelta(seconds=3))
    x = torch.ones(4, device="neuron")
    dist.all_reduce(x, group=group)
    if rank == 1:
        stays_away(folder)
        os._exit(0)
    try:
        dist.all_reduce(x, group=group)
    except RuntimeError as error:
        Path(folder, "error").write_text(str(error))
    os._exit(0)


def crashing_process(rank, port, folder):
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(Path(folder, "rank_"))
    join(rank, port)
    dist.all_reduce(torch.ones(4, device="neuron"))
    if rank == 1:
        ctypes.string_at(0)
    os._exit(0)


def rank_process(rank, port, folder):
    join(rank, port)
    assert torch.neuron.device_count() == SIZE and torch.neuron.current_device() == rank
    x, y = (t[2 * rank : 2 * rank + 2].to("neuron") for t in data())
    parameters = fit(DistributedDataParallel(make().to("neuron")), x, y)
    seen = {"parameters": parameters, **exchanges(rank)}
    torch.save(seen, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def simulated_process(rank, port, folder):
    join(rank, port)
    import trellis_neuron

    seen = {}
    with trellis_neuron.simulate("trn1.2xlarge", world_size=SIZE) as run:
        train(rank)
        gc.collect()  # models end in cycles: what is alive at the end is in the report
        dist.destroy_process_group()  # as programs end; the report is of all ranks all the same
    seen["report"] = json.dumps(run.as_dict(), sort_keys=True)
    if rank == 0:
        run.write_trace(Path(folder, "processes.txt"), "text")
    torch.save(seen, Path(folder, f"{rank}.pt"))


def failing_process(rank, port, folder):
    """What only rank 0 can find out, and what only one rank does wrong, is raised on both."""
    join(rank, port)
    import trellis_neuron
    from trellis_neuron import _processes

    errors = []
    for damage in ("text", "device"):
        try:
            with trellis_neuron.simulate("trn1.2xlarge", world_size=SIZE, steps="manual") as run:
                torch.ones(4, device="neuron").add_(1)
                if damage == "text" and rank == 1:
                    _processes._ops = Damaged(_processes._ops)
                if damage == "device":
                    torch.neuron.set_device(0)
                run.step()
        except RuntimeError as error:
            errors.append(str(error))
        torch.neuron.set_device(rank)
    torch.save(errors, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


class Damaged:
    def __init__(self, ops):
        self._ops = ops

    def __getattr__(self, name):
        if name == "give_step":
            return lambda ranks: self._ops.give_step(ranks)[:-1].clone()
        return getattr(self._ops, name)


def train(rank):
    """A step's communications and graphs are those of its rank, whatever runs it."""
    x, y = (t[2 * rank : 2 * rank + 2].float().to("neuron") for t in data())
    return fit(DistributedDataParallel(make().float().to("neuron")), x, y)


def report_of_threads(folder):
    import trellis_neuron

    def body(rank):
        dist.init_process_group("neuron")
        train(rank)

    with trellis_neuron.simulate("trn1.2xlarge", world_size=SIZE) as run:
        trellis_neuron.run_ranks(body, SIZE)
        DistributedDataParallel._active_ddp_module = None  # of the class: threads overwrite it
        gc.collect()
    run.write_trace(Path(folder, "threads.txt"), "text")
    return json.dumps(run.as_dict(), sort_keys=True)


def exchanges(rank):
    mine = torch.arange(4.0, device="neuron") + 10 * rank
    gathered, shard, swapped, sum_ = (torch.empty(n, device="neuron") for n in (8, 4, 4, 4))
    dist.all_gather_into_tensor(gathered, mine)
    dist.reduce_scatter_tensor(shard, gathered)
    dist.all_to_all_single(swapped, mine)
    sum_.copy_(mine)
    dist.reduce(sum_, dst=1)
    half, part = mine.clone(), torch.empty(2, device="neuron")
    dist.all_reduce(half, op=dist.ReduceOp.PREMUL_SUM(0.5))
    dist.reduce_scatter_tensor(part, mine, op=dist.ReduceOp.PREMUL_SUM(2.0))
    other = torch.empty(4, device="neuron")
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 0)
        dist.send(mine, 0)
    objects = [None] * SIZE
    dist.all_gather_object(objects, rank)
    dist.barrier()
    return {
        "gathered": gathered.cpu(),
        "shard": shard.cpu(),
        "swapped": swapped.cpu(),
        "sum": sum_.cpu(),
        "multiples": half.tolist() + part.tolist() + mine.tolist(),
        "other": other.cpu(),
        "objects": objects,
    }


class Processes(unittest.TestCase):
    def test_two_processes(self):
        import trellis_neuron  # noqa: F401

        with tempfile.TemporaryDirectory() as folder:
            spawn(rank_process, free_port(), folder)
            seen = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(SIZE)]
        x, y = data()
        for rank in range(SIZE):
            for expected, got in zip(
                fit(make().to("neuron"), x.to("neuron"), y.to("neuron")), seen[rank]["parameters"]
            ):
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
            self.assertEqual(seen[rank]["gathered"].tolist(), [0.0, 1, 2, 3, 10, 11, 12, 13])
            self.assertEqual(
                seen[rank]["shard"].tolist(), [2.0 * (10 * rank + i) for i in range(4)]
            )
            self.assertEqual(
                seen[rank]["swapped"].tolist(),
                [2.0 * rank, 2.0 * rank + 1, 2.0 * rank + 10, 2.0 * rank + 11],
            )
            self.assertEqual(
                seen[rank]["other"].tolist(), [10.0 * (1 - rank) + i for i in range(4)]
            )
            self.assertEqual(seen[rank]["objects"], [0, 1])
            part = [20.0, 24.0] if rank == 0 else [28.0, 32.0]
            mine = [10.0 * rank + i for i in range(4)]
            self.assertEqual(seen[rank]["multiples"], [5.0, 6, 7, 8, *part, *mine])
        self.assertEqual(seen[1]["sum"].tolist(), [10.0, 12, 14, 16])

    def test_simulated_time_is_that_of_threads(self):
        import trellis_neuron  # noqa: F401

        with tempfile.TemporaryDirectory() as folder:
            spawn(simulated_process, free_port(), folder)
            reports = [torch.load(Path(folder, f"{rank}.pt"))["report"] for rank in range(SIZE)]
            threads = report_of_threads(folder)
            traces = [Path(folder, f"{name}.txt").read_text() for name in ("processes", "threads")]
        self.assertEqual(reports[0], reports[1], "every rank gets the report of all")
        self.assertGreater(json.loads(threads)["steps"][0]["step_time_ps"], 0)
        self.assertEqual(json.loads(reports[0]), json.loads(threads))
        self.assertTrue(traces[0] == traces[1])

    def test_a_rank_that_stays_away_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            spawn(hanging_process, free_port(), folder)
            self.assertLess(time.monotonic() - began, 60)
            text = Path(folder, "error").read_text()
            self.assertRegex(text, r"communication hang: rank 0 waited \d+\.\d\d s in all-reduce")
            self.assertRegex(text, r"processes_test.py:\d+ \(hanging_process\)")
            self.assertRegex(
                text, r"missing: rank 1, which runs outside any communication .* in stays_away"
            )
            analyzer = "torch.distributed.flight_recorder.fr_trace"
            done = subprocess.run(
                [sys.executable, "-m", analyzer, folder], capture_output=True, text=True
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("missing ranks: {1}", done.stdout + done.stderr)
            dump = pickle.loads(Path(folder, "rank_0").read_bytes())
            frames = [entry["frames"][0]["name"] for entry in dump["entries"]]
            self.assertEqual(frames, ["hanging_process"] * 2)
            self.assertTrue(Path(folder, "trace_of_the_end.pftrace").exists())

    def test_a_process_that_crashes_leaves_its_dump(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(processes.ProcessExitedException) as raised:
                spawn(crashing_process, free_port(), folder)
            self.assertEqual(raised.exception.signal_name, "SIGSEGV")
            dump = pickle.loads(Path(folder, "rank_1").read_bytes())
            names = [entry["frames"][0]["name"] for entry in dump["entries"]]
            self.assertEqual(names, ["crashing_process"])
            self.assertEqual(dump["entries"][0]["state"], "completed")

    def said(self, kinds):
        with tempfile.TemporaryDirectory() as folder:
            ports = [free_port() for _ in range(len(kinds) + 1)]
            spawn(wrong_process, ports, folder, kinds)
            return {
                kind.__name__: [
                    json.loads(Path(folder, f"{kind.__name__}.{rank}").read_text())
                    for rank in range(SIZE)
                ]
                for kind in kinds
            }

    def test_what_ranks_do_wrong_together_is_named_before_bytes_move(self):
        said = self.said([*hang_kinds.AT_ONCE, *hang_kinds.LATE])
        for kind, by_rank in said.items():
            with self.subTest(kind=kind):
                errors = [(took, text) for took, text in by_rank if text != "nothing"]
                self.assertTrue(errors, "no rank found it")
                limit = hang_kinds.TIMEOUT_S + (2 if kind == "busy_loop" else -0.5)
                took, text = min(errors)
                self.assertLess(took, limit, text)
                self.assertRegex(text, "communication (mismatch|hang)")
                for words in ("rank 0", "rank 1", "hang_kinds.py:"):
                    self.assertIn(words, text)
                self.assertNotIn("typing_extensions", text)
                self.assertNotRegex(text, r"[ (][a-z_]*c10d_logger\.py")

    def test_a_rank_that_ends_early_is_named_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            spawn(leaving_process, free_port(), folder)
            took, text = json.loads(Path(folder, "said").read_text())
        self.assertLess(took, hang_kinds.TIMEOUT_S - 0.5)
        self.assertRegex(text, "missing: rank 1, which ended without a word with process 1")

    def test_threads_of_a_process_communicate(self):
        spawn(other_thread_process, free_port())

    def test_random_programs_have_the_oracles_numbers_and_no_false_alarm(self):
        spawn(process_programs.process, SIZE, free_port(), 1, PROGRAMS)

    def test_an_error_names_its_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_text(
                "import torch.distributed as dist, trellis_neuron\n"
                "dist.init_process_group('neuron')\n"
                "dist.barrier()\n"
                "if dist.get_rank() == 1: raise ValueError('mine')\n"
            )
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                       "--master-port", str(free_port()), str(program)]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
        self.assertRegex(done.stderr, r"ValueError: mine\n(\[rank1\]: )?raised by rank 1")

    def test_what_goes_wrong_on_one_is_raised_on_all(self):
        with tempfile.TemporaryDirectory() as folder:
            spawn(failing_process, free_port(), folder)
            errors = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(SIZE)]
        self.assertEqual(errors[0], errors[1])
        self.assertIn("its bytes are damaged", errors[0][0])
        self.assertIn("neuron:[0, 0]", errors[0][1])


if __name__ == "__main__":
    unittest.main()
