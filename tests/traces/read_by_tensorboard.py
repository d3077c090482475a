"""Reads what traces_write_samples wrote with TensorBoard's own loader (which checks every CRC) and
compares every scalar.

Usage: read_by_tensorboard.py WRITER [SEED]
"""

import json
import random
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2


def load(path):
    return [event_pb2.Event.FromString(raw) for raw in RawEventFileLoader(path).Load()]


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def check(events, scalars):
    assert events[0].file_version == "brain.Event:2" and events[0].wall_time == 1.5
    got = [
        (e.summary.value[0].tag, e.step, e.summary.value[0].simple_value, e.wall_time)
        for e in events[1:]
    ]
    assert got == [(s["tag"], s["step"], as_float32(s["value"]), s["wall_time"]) for s in scalars]


def main():
    seed = sys.argv[2] if len(sys.argv) > 2 else str(random.randrange(1 << 31))
    print("seed", seed)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory, seed], check=True)
        with open(f"{directory}/expected.json") as file:
            scalars = json.load(file)["scalars"]
        path = f"{directory}/events.out.tfevents.sample"
        check(load(path), scalars)

        # A killed run: the file ends within a record. Everything before it is still there.
        with open(path, "rb") as file:
            content = file.read()
        torn = f"{directory}/events.out.tfevents.torn"
        with open(torn, "wb") as file:
            file.write(content[:-5])
        check(load(torn), scalars[:-1])

        # The loader does check: one flipped bit in the payload loses that record.
        broken = bytearray(content)
        broken[-6] ^= 1
        with open(torn, "wb") as file:
            file.write(broken)
        assert len(load(torn)) == len(scalars), "the loader accepted a wrong CRC"
    print(len(scalars), "scalars: equal")


if __name__ == "__main__":
    main()
