"""Reads what traces_write_samples wrote with Perfetto's own protobuf classes and compares every
event.

Usage: read_by_perfetto.py WRITER [SEED]
"""

import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Event = pb.TrackEvent


class Reader:
    """A packet sequence as Perfetto's importer sees it: interned texts, descriptors, one stack of
    open slices per track."""

    def __init__(self, trace):
        self.tables = {
            "event_names": {},
            "event_categories": {},
            "debug_annotation_names": {},
            "debug_annotation_string_values": {},
        }
        self.descriptors, self.slices, self.instants, self.samples = {}, [], [], []
        self.stacks = defaultdict(list)
        self.state_valid = False
        self.now = 0
        for packet in trace.packet:
            self.packet(packet)
        assert not any(self.stacks.values()), "slices without an end"

    def packet(self, packet):
        assert packet.trusted_packet_sequence_id != 0
        if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            self.state_valid = True
        if packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE:
            assert self.state_valid, "packet before the incremental state"
        for kind, table in self.tables.items():
            for entry in getattr(packet.interned_data, kind):
                assert entry.iid != 0 and entry.iid not in table
                table[entry.iid] = (
                    entry.str.decode() if kind == "debug_annotation_string_values" else entry.name
                )
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in self.descriptors
            assert (
                not descriptor.HasField("parent_uuid") or descriptor.parent_uuid in self.descriptors
            )
            self.descriptors[descriptor.uuid] = descriptor
        if packet.HasField("track_event"):
            assert packet.timestamp >= self.now, "events are not in the order of time"
            self.now = packet.timestamp
            self.event(packet.timestamp, packet.track_event)

    def event(self, at, event):
        assert event.track_uuid in self.descriptors
        if event.type == Event.TYPE_SLICE_BEGIN:
            self.stacks[event.track_uuid].append(self.described(event) | {"ns": at})
        elif event.type == Event.TYPE_SLICE_END:
            done = self.stacks[event.track_uuid].pop()
            self.slices.append(done | {"end_ns": at, "depth": len(self.stacks[event.track_uuid])})
        elif event.type == Event.TYPE_INSTANT:
            self.instants.append(self.described(event) | {"ns": at})
        else:
            assert event.type == Event.TYPE_COUNTER
            self.samples.append({"track": event.track_uuid, "ns": at, "value": event.counter_value})

    def described(self, event):
        args = {}
        for annotation in event.debug_annotations:
            kind = annotation.WhichOneof("value")
            value = getattr(annotation, kind)
            if kind == "string_value_iid":
                value = self.tables["debug_annotation_string_values"][value]
            args[self.tables["debug_annotation_names"][annotation.name_iid]] = value
        name = (
            event.name
            if event.WhichOneof("name_field") == "name"
            else self.tables["event_names"][event.name_iid]
        )
        categories = [self.tables["event_categories"][iid] for iid in event.category_iids]
        return {
            "track": event.track_uuid,
            "name": name,
            "category": "".join(categories),
            "args": args,
            "flows_out": sorted(event.flow_ids),
            "flows_in": sorted(event.terminating_flow_ids),
        }


def check_descriptors(reader, expected):
    """Returns the uuids of the expected tracks and counters, in their order there."""
    roots = {
        d.process.process_name: d for d in reader.descriptors.values() if d.HasField("process")
    }
    assert len(roots) == len(expected["processes"]) and len(
        {d.process.pid for d in roots.values()}
    ) == len(roots)
    shown = sorted(roots.values(), key=lambda d: d.process.legacy_sort_index)
    assert [d.process.process_name for d in shown] == [
        p["name"] for p in sorted(expected["processes"], key=lambda p: p["sort"])
    ]
    assert all(d.child_ordering == pb.TrackDescriptor.EXPLICIT for d in roots.values())
    process_of = {d.uuid: name for name, d in roots.items()}

    children = [d for d in reader.descriptors.values() if d.HasField("parent_uuid")]
    tracks = sorted((d for d in children if not d.HasField("counter")), key=lambda d: d.uuid)
    assert [(process_of[d.parent_uuid], d.name) for d in tracks] == [
        (t["process"], t["name"]) for t in expected["tracks"]
    ]
    for process in process_of.values():
        rows = [
            (t["sort"], d.sibling_order_rank)
            for d, t in zip(tracks, expected["tracks"])
            if t["process"] == process
        ]
        assert [rank for _, rank in sorted(rows)] == sorted(rank for _, rank in rows), (
            "tracks are not in their order"
        )
    counters = sorted((d for d in children if d.HasField("counter")), key=lambda d: d.uuid)
    for descriptor, counter in zip(counters, expected["counters"], strict=True):
        assert process_of[descriptor.parent_uuid] == counter["process"]
        unit = (
            "bytes"
            if descriptor.counter.unit == pb.CounterDescriptor.UNIT_SIZE_BYTES
            else descriptor.counter.unit_name
        )
        assert unit == counter["unit"]
    return [d.uuid for d in tracks], [d.uuid for d in counters]


def check_slices(reader, expected, tracks):
    def key(s):
        return json.dumps(
            [
                s["track"],
                s["name"],
                s["category"],
                sorted(s["args"].items()),
                s["flows_out"],
                s["flows_in"],
            ]
        )

    wanted = sorted(
        key(
            {
                "track": tracks[s["track"]],
                "name": s["name"],
                "category": s["category"],
                "args": s["args"] | {"start_ps": s["start"], "duration_ps": s["duration"]},
                "flows_out": sorted(f + 1 for f in s["flows_out"]),
                "flows_in": sorted(f + 1 for f in s["flows_in"]),
            }
        )
        for s in expected["slices"]
    )
    assert sorted(map(key, reader.slices)) == wanted
    moved = 0
    for s in reader.slices:
        start, end = s["args"]["start_ps"], s["args"]["start_ps"] + s["args"]["duration_ps"]
        assert s["ns"] >= start // 1000 and s["end_ns"] >= end // 1000 and s["end_ns"] >= s["ns"]
        moved += s["ns"] != start // 1000 or s["end_ns"] != end // 1000
    assert 0 < moved < len(reader.slices), "random slices cross now and then, and most do not"


def check_rest(reader, expected, tracks, counters):
    plain = [
        s | {"args": sorted(s["args"].items())} for s in reader.instants if s["track"] in tracks
    ]
    wanted = [
        {
            "track": tracks[i["track"]],
            "name": i["name"],
            "category": i["category"],
            "ns": i["at"] // 1000,
            "args": sorted((i["args"] | {"start_ps": i["at"]}).items()),
            "flows_out": [],
            "flows_in": [],
        }
        for i in expected["instants"]
    ]
    assert sorted(plain, key=json.dumps) == sorted(
        (dict(zip(plain[0], [w[k] for k in plain[0]])) for w in wanted), key=json.dumps
    )
    got = sorted((s["track"], s["ns"], s["value"]) for s in reader.samples)
    assert got == sorted(
        (counters[s["counter"]], s["at"] // 1000, s["value"]) for s in expected["samples"]
    )
    warnings = [i["name"] for i in reader.instants if i["track"] not in tracks]
    assert expected["dropped"] > 0
    assert warnings == [
        f"{expected['dropped']} events dropped: the timeline holds at most 3000 events"
    ], warnings


def main():
    seed = sys.argv[2] if len(sys.argv) > 2 else str(random.randrange(1 << 31))
    print("seed", seed)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory, seed], check=True)
        with open(f"{directory}/expected.json") as file:
            expected = json.load(file)
        trace = pb.Trace()
        with open(f"{directory}/trace.perfetto", "rb") as file:
            content = file.read()
        trace.ParseFromString(content)
    reader = Reader(trace)
    tracks, counters = check_descriptors(reader, expected)
    check_slices(reader, expected, tracks)
    check_rest(reader, expected, tracks, counters)
    print(
        len(reader.slices), "slices,", len(reader.samples), "samples,", len(content), "bytes: equal"
    )


if __name__ == "__main__":
    main()
