#!/usr/bin/env python3
"""SIGKILL of a random rank's process at 20 random moments of a training under torchrun.

Usage: random_kills.py [MOMENTS]. Prints for each moment how long the job took and whether weights
and optimizer states at its end are those of a run without a kill, file by file; exit code 1 when
one is not. The test integration/faults:Kills runs three of them.
"""

import os
import pathlib
import random
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/integration"))
sys.dont_write_bytecode = True
from faults_test import SAVES, Kills  # noqa: E402


def main():
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    case = Kills("test_the_final_state_is_that_of_a_whole_run")
    case.setUp()
    equal, restarts, began = 0, 0, time.monotonic()
    try:
        more = (f"trainer.max_steps={case.STEPS}", *SAVES)
        case.train("--device", "cpu", *more, log="whole")
        expected = case.final_state("whole")
        chance = random.Random(case.SEED)
        for moment in range(moments):
            log, start = f"run{moment}", time.monotonic()
            killed = case.killed_run(log, chance, more)
            same = case.final_state(log) == expected
            steps = case.steps_before_the_kill(log)
            equal += same
            restarts += killed
            print(
                f"{moment + 1:2}: {time.monotonic() - start:5.1f} s, "
                + (f"killed after step {steps:2}" if killed else "ended before the moment")
                + f", final state {'equal' if same else 'DIFFERENT'}",
                flush=True,
            )
    finally:
        case.doCleanups()
    print(
        f"{equal} of {moments} final states equal, {restarts} processes were killed, "
        f"{time.monotonic() - began:.0f} s on {os.cpu_count()} cores"
    )
    return 0 if equal == moments else 1


if __name__ == "__main__":
    sys.exit(main())
