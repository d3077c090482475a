"""What tests of simulations share: `trellis simulate` of small models, and their layouts."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
LLAMA = SOURCE / "examples/verify_llama.yaml"


class Case(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def simulate(self, *args, code=0, config=QUICKSTART):
        result = subprocess.run(
            [TRELLIS, "simulate", config, "--json", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(result.returncode, code, result.stderr[-3000:])
        return json.loads(result.stdout) if code == 0 else result.stderr

    def layout(self, ranks, tp, pp, dp, *more, nodes=1, instance="trn1.32xlarge"):
        """The quickstart's model, wide enough for `tp`, on `ranks` ranks per node."""
        return [
            f"trainer.devices={ranks}",
            f"trainer.num_nodes={nodes}",
            "--nodes",
            nodes,
            "--instance",
            instance,
            f"distributed_strategy.tensor_model_parallel_size={tp}",
            f"distributed_strategy.pipeline_model_parallel_size={pp}",
            f"data.global_batch_size={4 * dp}",
            "data.micro_batch_size=1",
            "model.num_layers=4",
            "model.num_attention_heads=8",
            "model.num_kv_heads=8",
            "model.hidden_size=256",
            "model.ffn_hidden_size=512",
            *more,
        ]


def figures(row):
    return {key: value for key, value in row.items() if key not in ("rank", "represents")}
