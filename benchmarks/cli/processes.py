#!/usr/bin/env python3
"""What processes cost: the quickstart on 8 processes next to 8 threads of one, which compute the
same bits. Time: the least of several runs, alternately; memory: what each further process has at
its peak.

Usage: processes.py [TRELLIS [RUNS [KEY=VALUE …]]]
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSES = 8


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def peak_bytes(job, peaks, place):
    _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    peaks[place] = usage.ru_maxrss * 1024


def run(trellis, overrides, processes):
    """Seconds, and the peak of each process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [trellis, "train", ROOT / "examples/quickstart.yaml", *overrides]
        command.append(f"exp_manager.explicit_log_dir={folder}/run")
        port, peaks, jobs = free_port(), [0] * processes, []
        began = time.monotonic()
        for rank in range(processes):
            env = {**os.environ, "TRELLIS_CACHE": "off"}
            if processes > 1:
                env |= {"RANK": str(rank), "WORLD_SIZE": str(processes)}
                env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            jobs.append(
                subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
                )
            )
        waits = [
            threading.Thread(target=peak_bytes, args=(job, peaks, place))
            for place, job in enumerate(jobs)
        ]
        for wait in waits:
            wait.start()
        for wait in waits:
            wait.join()
        seconds = time.monotonic() - began
        if any(job.returncode for job in jobs):
            sys.exit(f"exit codes {[job.returncode for job in jobs]}")
        return seconds, peaks


def main():
    trellis = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin/trellis"
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    overrides = sys.argv[3:]
    threads, processes = [], []
    for _ in range(runs):
        threads.append(run(trellis, overrides, 1))
        processes.append(run(trellis, overrides, PROCESSES))
    alone, together = min(s for s, _ in threads), min(s for s, _ in processes)
    one, all_of_them = min(p[0] for _, p in threads), min(sum(p) for _, p in processes)
    more = (all_of_them - one) / (PROCESSES - 1)
    print(f"threads of one process: {alone:.2f} s, {one / 1e6:.0f} MB")
    print(f"{PROCESSES} processes: {together:.2f} s, {all_of_them / 1e6:.0f} MB in all")
    print(f"time: {together / alone:.2f} times that of threads (bar: 1.5)")
    print(f"memory: {more / 1e6:.0f} MB more for each further process (bar: 250)")


if __name__ == "__main__":
    main()
