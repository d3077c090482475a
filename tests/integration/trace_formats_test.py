#!/usr/bin/env python3
"""Files for other programs: Kineto as HolisticTraceAnalysis reads it, Chakra, Parquet."""

import json
import os
import subprocess
import sys
import unittest
from unittest import mock

import pyarrow.parquet
from cli_case import PACKAGE, QUICKSTART, SHORT, Case
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPUTES = {"compute", "memory", "optimizer"}
IDLES = {"bubble", "launch", "host", "data", "other", "multi_node"}


def analysis(folder):
    """HolisticTraceAnalysis without Plotly, with which it draws."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    for name in ("plotly", "plotly.express", "plotly.graph_objects", "plotly.subplots", "pydot"):
        sys.modules.setdefault(name, mock.MagicMock())
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_dir=str(folder))


def times(rows, kinds):
    return sum(row["time_ps"] for row in rows if row["kind"] in kinds)


class Kineto(Case):
    def test_analysis_agrees_with_the_report(self):
        result = self.trellis(
            *("simulate", QUICKSTART, *SHORT, "--trace-format", "kineto"),
            *("model.hidden_size=512", "model.ffn_hidden_size=1536"),
            *("distributed_strategy.pipeline_model_parallel_size=1",),
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        step = json.loads((self.dir / "run/report.json").read_text())["simulated"]
        rank = step["communication"]["rank"]
        hta = analysis(self.dir / "run/trace.kineto")
        self.assertEqual(sorted(hta.t.traces), [row["rank"] for row in step["breakdown"]])
        times_of = hta.get_temporal_breakdown(visualize=False).set_index("rank").loc[rank]
        rows = step["attribution"]["rows"]
        self.assertEqual(step["attribution"].get("rank", rank), rank)
        whole = step["step_time_ps"]

        def close(microseconds, picoseconds):
            self.assertLess(abs(microseconds * 1e6 - picoseconds) / whole, 0.01)

        close(times_of["compute_time(us)"], times(rows, COMPUTES))
        # Kernels begin with the first one: what is before belongs to no program of HTA.
        before = whole - times_of["kernel_time(us)"] * 1e6
        close(times_of["idle_time(us)"] + before / 1e6, times(rows, IDLES))
        expected = step["communication"]["overlap"]
        share = 100 * expected["computing_ps"] / expected["moving_ps"]
        self.assertGreater(share, 1)
        overlap = hta.get_comm_comp_overlap(visualize=False).set_index("rank").loc[rank]
        self.assertAlmostEqual(overlap["comp_comm_overlap_pctg"], share, delta=1)


def chakra_messages():
    """Node and GlobalMetadata of et_def.proto, as far as the writer has them."""
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="t", syntax="proto3")

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, field, kind, repeated, inner in fields:
            made.field.add(
                name=field,
                number=number,
                type=kind,
                label=3 if repeated else 1,
                type_name=inner and f".t.{inner}",
            )

    u64, i32, i64, boolean, text, enum, inner = 4, 5, 3, 8, 9, 5, 11
    message("Metadata", (1, "version", text, False, None))
    message(
        "Attribute",
        (1, "name", text, False, None),
        (7, "int32_val", i32, False, None),
        (9, "int64_val", i64, False, None),
        (27, "bool_val", boolean, False, None),
        (29, "string_val", text, False, None),
    )
    message(
        "Node",
        (1, "id", u64, False, None),
        (2, "name", text, False, None),
        (3, "type", enum, False, None),
        (5, "data_deps", u64, True, None),
        (7, "duration_micros", u64, False, None),
        (10, "attr", inner, True, "Attribute"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Metadata")),
        message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Node")),
    )


METADATA, NODE = chakra_messages()
COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
# Those collectives that ASTRA-sim knows.
ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 5, 6, 7

COLLECTIVES = """
import sys
import torch
import torch.distributed as dist
import trellis_neuron

def program(rank):
    dist.init_process_group("neuron")
    rows = torch.ones(8, 4, device="neuron")
    dist.barrier()
    dist.broadcast(rows, src=1)
    dist.all_gather([torch.empty_like(rows) for _ in range(2)], rows)
    dist.reduce_scatter(torch.empty_like(rows), [rows, rows])
    dist.all_to_all_single(torch.empty_like(rows), rows)
    run.step()

with trellis_neuron.simulate("trn1.32xlarge", steps="manual") as run:
    trellis_neuron.run_ranks(program, 2)
run.write_trace(sys.argv[1], "chakra")
"""


def read_et(path):
    data, at, parts = path.read_bytes(), 0, []
    while at < len(data):
        size, shift = 0, 0
        while True:
            byte = data[at]
            at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        parts.append(data[at : at + size])
        at += size
    metadata = METADATA.FromString(parts[0])
    nodes = [NODE.FromString(part) for part in parts[1:]]
    return metadata, nodes


def attributes(node):
    return {
        a.name: a.string_val
        or a.int64_val
        or a.int32_val
        or (a.bool_val if a.name == "is_cpu_op" else 0)
        for a in node.attr
    }


class Chakra(Case):
    def test_every_rank_can_be_replayed(self):
        result = self.trellis(
            *("simulate", QUICKSTART, *SHORT, "--trace-format", "chakra"),
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        folder = self.dir / "run/trace.chakra"
        groups = json.loads((folder / "comm_groups.json").read_text())
        step = json.loads((self.dir / "run/report.json").read_text())["simulated"]
        ranks = [read_et(folder / f"step.{rank}.et") for rank in range(8)]
        self.assertFalse((folder / "step.8.et").exists())
        collectives, sent, received = {}, [], []
        for rank, (metadata, nodes) in enumerate(ranks):
            self.assertTrue(metadata.version)
            self.assertEqual([node.id for node in nodes], list(range(len(nodes))))
            for node in nodes:
                self.assertTrue(all(dep < node.id for dep in node.data_deps))
                facts = attributes(node)
                self.assertFalse(facts["is_cpu_op"])
                if node.type == COLLECTIVE:
                    self.assertGreater(facts["comm_size"], 0)
                    self.assertIn(rank, groups[facts["pg_name"]])
                    key = (rank, facts["pg_name"])
                    kind = (facts["comm_type"], facts["comm_size"])
                    collectives.setdefault(key, []).append(kind)
                elif node.type in (SEND, RECV):
                    pair = [facts[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
                    (sent if node.type == SEND else received).append(pair)
                    self.assertEqual(pair[node.type == RECV], rank)
                else:
                    self.assertEqual(node.type, COMP)
        # To ASTRA-sim group 0 is all ranks, whatever the file says.
        self.assertGreater(min(map(int, groups)), 0)
        # Sequence parallelism: 2 samples of 32 tokens of 128 numbers of 2 bytes. The size is the
        # input's: of an all-gather the part that a rank has.
        hidden = 2 * 32 * 128 * 2
        tensor_parallel = next(name for name, members in groups.items() if members == [0, 1])
        kinds = set(collectives[0, tensor_parallel])
        self.assertIn((REDUCE_SCATTER, hidden), kinds)
        self.assertIn((ALL_GATHER, hidden // 2), kinds)
        self.assertNotIn((ALL_GATHER, hidden), kinds)
        # All members of a group start the same collectives; what is sent is received.
        for name, members in groups.items():
            lists = [collectives.get((rank, name), []) for rank in members]
            self.assertTrue(all(each == lists[0] for each in lists), name)
        self.assertEqual(sorted(sent), sorted(received))
        self.assertTrue(sent)
        # Work of a rank takes what the report says, up to one rounding.
        last = next(
            row for row in step["breakdown"] if row["rank"] == step["communication"]["rank"]
        )
        waits = [f"exposed_{axis}_ps" for axis in ("tp", "pp", "dp", "ep")] + ["bubble_ps"]
        idle = sum(last[key] for key in waits) + last["host_ps"]
        work = sum(node.duration_micros for node in ranks[last["rank"]][1] if node.type == COMP)
        self.assertLess(abs(work - (step["step_time_ps"] - idle) / 1e6), 0.01 * work + 1)

    def test_collectives_of_a_program(self):
        folder = self.dir / "trace.chakra"
        result = subprocess.run(
            [sys.executable, "-B", "-c", COLLECTIVES, folder],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **PACKAGE, "TRELLIS_CACHE": "off"},
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        size = 8 * 4 * 4
        for rank in (0, 1):
            _, nodes = read_et(folder / f"step.{rank}.et")
            facts = [attributes(node) for node in nodes if node.type == COLLECTIVE]
            kinds = [(fact["comm_type"], fact["comm_size"]) for fact in facts]
            # A barrier is an all-reduce of one element: ASTRA-sim ends at the schema's own.
            self.assertEqual(kinds[0][0], ALL_REDUCE)
            self.assertIn(kinds[0][1], range(1, 9))
            rest = [(BROADCAST, size), (ALL_GATHER, size), (REDUCE_SCATTER, 2 * size)]
            self.assertEqual(kinds[1:], [*rest, (ALL_TO_ALL, size)])
        # ASTRA-sim ends at a rank without nodes.
        _, (node,) = read_et(folder / "step.2.et")
        self.assertEqual((node.type, node.duration_micros), (COMP, 0))


class Metrics(Case):
    def test_a_table_of_two_runs(self):
        for name in ("a", "b"):
            log = f"exp_manager.explicit_log_dir={self.dir / name}"
            result = self.trellis("train", QUICKSTART, *SHORT, "--device", "neuron", log)
            self.assertEqual(result.returncode, 0, result.stderr)
        result = self.trellis("report", "a", "b", "--metrics", "metrics.parquet")
        self.assertEqual(result.returncode, 0, result.stderr)
        table = pyarrow.parquet.read_table(self.dir / "metrics.parquet")
        self.assertEqual(table.schema.metadata[b"schema"], b"trellis.metrics/1")
        rows = table.to_pylist()
        expected = [
            {"run": name, **json.loads(line)}
            for name in ("a", "b")
            for line in (self.dir / name / "metrics.jsonl").read_text().splitlines()
        ]
        self.assertEqual(len(rows), 4)
        self.assertEqual([{k: row[k] for k in row if row[k] is not None} for row in rows], expected)
        types = {field.name: str(field.type) for field in table.schema}
        self.assertEqual(list(types)[:3], ["run", "step", "consumed_samples"])
        self.assertEqual(types["step"], "int64")
        self.assertEqual(types["loss"], "double")
        (self.dir / "a/metrics.jsonl").write_text('{"step": 1}\n{"step": "x"}\n')
        result = self.trellis("report", "a", "--metrics", "again.parquet")
        self.fails(result, 2, "a/metrics.jsonl:2: step: expected an integer")
        self.assertFalse((self.dir / "again.parquet").exists())


if __name__ == "__main__":
    unittest.main()
