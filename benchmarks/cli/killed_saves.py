#!/usr/bin/env python3
"""SIGKILL of a training at 20 random points of a save.

Usage: killed_saves.py [MOMENTS]. Prints for each moment which save was killed, whether something of
it was left, and whether the last complete checkpoint loaded, the next start removed the rest and
the training ended with the weights and optimizer states of a run without a kill; exit code 1 when
one did not. The test integration/checkpoints:KilledSaves runs three of them.
"""

import os
import pathlib
import random
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/integration"))
sys.dont_write_bytecode = True
from checkpoints_test import KilledSaves  # noqa: E402


def main():
    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    case = KilledSaves("test_the_last_complete_checkpoint_loads_and_the_rest_goes")
    case.setUp()
    good, remainders, began = 0, 0, time.monotonic()
    try:
        expected = case.whole_run()
        chance = random.Random(case.SEED)
        for moment in range(moments):
            start = time.monotonic()
            try:
                step, left = case.killed_save(case.dir / f"cut{moment}", chance, expected)
                good += 1
                remainders += left
                said = f"save of step {step}, {'a remainder' if left else 'no remainder'}: good"
            except AssertionError as error:
                said = f"BAD: {error}"
            print(f"{moment + 1:2}: {time.monotonic() - start:5.1f} s, {said}", flush=True)
    finally:
        case.doCleanups()
    print(
        f"{good} of {moments} kills lost nothing, {remainders} left a remainder that went, "
        f"a save takes {case.save_seconds:.2f} s, {time.monotonic() - began:.0f} s "
        f"on {os.cpu_count()} cores"
    )
    return 0 if good == moments else 1


if __name__ == "__main__":
    sys.exit(main())
