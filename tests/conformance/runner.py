"""Deals cases to worker processes and judges the answers against the list of expected failures."""

import collections
import dataclasses
import fnmatch
import json
import os
import pathlib
import queue
import select
import signal
import subprocess
import sys
import threading
import time

import yaml
from case import FAMILIES

HERE = pathlib.Path(__file__).parent
EXPECTED_FAILURES = HERE / "expected_failures.yaml"
WORKER = [sys.executable, str(HERE / "worker.py")]
START_SECONDS = 240  # a worker imports PyTorch's whole test material


@dataclasses.dataclass
class Result:
    case: object
    status: str  # passed, failed, skipped
    message: str
    seconds: float
    reason: str = ""  # why a failure is expected


class Worker:
    """One process; restarted when a case takes it down."""

    def __init__(self, timeout):
        self.timeout, self.process, self.environment = timeout, None, {}

    def command(self):
        return WORKER

    def start(self):
        """The process's first line."""
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=False,
            bufsize=0,
            env={**os.environ, **self.environment},
        )
        answer, problem = self.read(START_SECONDS)
        if answer is None:
            raise RuntimeError(
                f"a worker did not start ({problem}); run {self.command()} by hand to see why"
            )
        return answer

    def run(self, case):
        wanted = getattr(FAMILIES.get(case.family), "environment", {})
        if wanted != self.environment:
            self.stop()
            self.environment = wanted
        return self.ask(case, {"case": dataclasses.astuple(case)})

    def ask(self, case, question):
        if self.process is None:
            self.start()
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        answer, problem = self.read(self.timeout)
        if answer is None:
            return Result(case, "failed", problem, self.timeout)
        return Result(case, **answer)

    def read(self, seconds):
        """(answer, None), or (None, what happened to the process), which is gone then."""
        line, deadline = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                self.stop()
                return None, f"took more than {seconds} s"
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                code = self.stop()
                return (
                    None,
                    "the process died: "
                    f"{signal.Signals(-code).name if code < 0 else f'exit code {code}'}",
                )
            line += chunk
        return json.loads(line), None

    def stop(self):
        """Ends the process; its exit code (the one with which it died, if it had died)."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.kill()
        with process:
            return process.wait()


class ExpectedFailures:
    """expected_failures.yaml: [{cases: [glob …], reason: text}]."""

    def __init__(self, path=EXPECTED_FAILURES):
        self.entries = [
            (glob, entry["reason"])
            for entry in yaml.safe_load(path.read_text()) or []
            for glob in entry["cases"]
        ]
        self.used = set()

    def reason(self, case):
        for glob, reason in self.entries:
            if fnmatch.fnmatchcase(str(case), glob):
                self.used.add(glob)
                return reason
        return ""

    def unused(self):
        return [glob for glob, _ in self.entries if glob not in self.used]


def run(cases, jobs, timeout, progress, make_worker=Worker):
    """Runs every case; the results come in the cases' order."""
    todo = queue.SimpleQueue()
    for number, case in enumerate(cases):
        todo.put((number, case))
    results, problems, lock = [None] * len(cases), [], threading.Lock()

    def deal():
        worker = make_worker(timeout)
        try:
            while not problems:
                number, case = todo.get_nowait()
                result = worker.run(case)
                with lock:
                    results[number] = result
                    progress(result)
        except queue.Empty:
            pass
        except Exception as problem:  # in a thread it would vanish
            problems.append(problem)
        finally:
            worker.stop()

    threads = [threading.Thread(target=deal) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return results


def summarize(results):
    """family → status → count; an expected failure counts as `expected`."""
    table = collections.defaultdict(collections.Counter)
    for result in results:
        table[result.case.family][
            "expected" if result.status == "failed" and result.reason else result.status
        ] += 1
    return table
