#!/usr/bin/env python3
"""`trellis checkpoint reshard` and `convert`: other layouts and one file, in bounded memory."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
QUICKSTART = SOURCE / "examples/quickstart.yaml"
SMALL = [
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_kv_heads=4",
    "precision.type=fp32",
    "model.encoder_seq_length=16",
    "data.global_batch_size=8",
    "data.micro_batch_size=1",
]
SAVES = [
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1}",
    "--device",
    "cpu",
]
TP4 = [
    "distributed_strategy.tensor_model_parallel_size=4",
    "distributed_strategy.pipeline_model_parallel_size=1",
    "distributed_strategy.zero1=false",
]
MIB = 2**20
# A process between: one that is started counts the memory of the one that starts it.
PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
open(sys.argv[1], "w").write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def trellis(self, *args, returncode=0):
        """stdout, stderr and the largest number of bytes in memory."""
        peak = self.dir / "peak"
        process = subprocess.run(
            [sys.executable, "-c", PEAK, peak, str(TRELLIS), *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=300,
        )
        self.assertEqual(process.returncode, returncode, process.stdout + process.stderr[-3000:])
        return process.stdout, process.stderr, int(peak.read_text()) * 1024

    def train(self, run, *args):
        self.trellis(
            *("train", QUICKSTART, *SMALL, *SAVES, *args),
            f"exp_manager.explicit_log_dir={self.dir / run}",
        )
        (saved,) = (self.dir / run / "checkpoints").glob("*-last.ckpt")
        return saved


class Reshard(Case):
    def test_another_layout_goes_on(self):
        saved = self.train("run", "trainer.max_steps=2")
        out, _, _ = self.trellis(
            *("checkpoint", "reshard", saved, *TP4, "--out", "tp4.ckpt", "--json")
        )
        said = json.loads(out)
        self.assertEqual(said["layout"], {"tp": 4, "pp": 1, "vpp": 1, "dp": 2, "zero1": False})
        self.assertEqual(len(list((self.dir / "tp4.ckpt/model").iterdir())), 4)
        self.trellis("checkpoint", "verify", "tp4.ckpt")
        out, _, _ = self.trellis("checkpoint", "diff", saved, "tp4.ckpt")
        self.assertIn(": 0 differ", out)
        # With the configuration that it now says, it goes on.
        resumed = self.train(
            *("next", *TP4, "trainer.max_steps=3"),
            f"exp_manager.resume_from_checkpoint={self.dir / 'tp4.ckpt'}",
        )
        self.assertIn("step=3", resumed.name)
        self.trellis("checkpoint", "reshard", saved, *TP4, "--out", "tp4.ckpt", returncode=2)

    def test_what_is_missing_is_named(self):
        saved = self.train("run", "trainer.max_steps=1")
        reshard = ("checkpoint", "reshard", saved, "model.num_layers=4", "--out", "a")
        _, error, _ = self.trellis(*reshard, returncode=2)
        self.assertIn("model.num_layers: expected 4", error)
        accept = "exp_manager.accept_differences=[model.num_layers]"
        _, error, _ = self.trellis(*reshard, accept, returncode=2)
        self.assertIn("has no model.layers.3.mlp.down_proj.weight", error)
        self.assertFalse((self.dir / "a").exists())
        _, error, _ = self.trellis(
            *("checkpoint", "reshard", saved, "model.num_kv_heads=3", "--out", "a"), returncode=2
        )
        self.assertIn("-last.ckpt's configuration", error)


class Convert(Case):
    def test_one_file_and_back(self):
        saved = self.train("run", "trainer.max_steps=1")
        self.trellis("checkpoint", "convert", saved, "--to", "full", "--out", "whole.pt")
        whole = torch.load(self.dir / "whole.pt", weights_only=True)
        self.assertEqual(list(whole["model.embed_tokens.weight"].shape), [272, 32])
        self.assertIn("optimizer.state.exp_avg_sq.model.norm.weight", whole)
        self.trellis(
            *("checkpoint", "convert", "whole.pt", *SMALL, *TP4, "--to", "native"),
            *("--config", QUICKSTART, "--out", "back.ckpt"),
        )
        self.trellis("checkpoint", "diff", saved, "back.ckpt")
        self.trellis(
            *("checkpoint", "convert", saved, "--to", "full", "--out", "b.pt", "--weights-only"),
            *("--dtype", "bfloat16"),
        )
        got = torch.load(self.dir / "b.pt", weights_only=True)
        self.assertEqual(set(got), {key for key in whole if not key.startswith("optimizer.")})
        for key, tensor in got.items():
            self.assertTrue(torch.equal(tensor, whole[key].bfloat16()), key)


class Memory(Case):
    LAYERS, HIDDEN, FFN = 4, 1024, 4096

    def whole(self, layers, hidden, ffn, states=()):
        """One file of weights and their states, and the options of their model."""
        generator = torch.Generator().manual_seed(1)
        sizes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden, hidden),
            "self_attn.v_proj": (hidden, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        weights = {
            f"model.layers.{layer}.{name}.weight": torch.rand(size, generator=generator)
            for layer in range(layers)
            for name, size in sizes.items()
        }
        for name, size in (
            ("model.embed_tokens", (272, hidden)),
            ("lm_head", (272, hidden)),
            ("model.norm", (hidden,)),
        ):
            weights[f"{name}.weight"] = torch.rand(size, generator=generator)
        for state in states:
            weights |= {
                f"optimizer.state.{state}.{name}": weight.clone()
                for name, weight in weights.items()
                if not name.startswith("optimizer.")
            }
        file = self.dir / f"{hidden}.pt"
        torch.save(weights, file)
        return file, [
            *(f"model.num_layers={layers}", f"model.hidden_size={hidden}"),
            *(f"model.ffn_hidden_size={ffn}", "model.num_kv_heads=4", "precision.type=fp32"),
        ]

    def peaks(self, *sizes):
        file, options = self.whole(*sizes)
        out = self.dir / str(sizes[1])
        native, again, hub = out / "a.ckpt", out / "b.ckpt", out / "hub"
        commands = {
            "full to native": ("convert", file, *options, "--to", "native", "--config", QUICKSTART)
            + ("--weights-only", "--out", native),
            "reshard": ("reshard", native, *TP4[:2], "--weights-only", "--out", again),
            "export": ("export-hf", again, "--out", hub),
            "full": ("convert", hub, "--to", "full", "--out", out / "whole.pt"),
        }
        peaks = {
            name: self.trellis("checkpoint", *command)[2] for name, command in commands.items()
        }
        self.trellis("checkpoint", "diff", file, out / "whole.pt")
        return peaks, file.stat().st_size

    def states_peaks(self, *sizes):
        """Of states in one folder of DCP."""
        file, options = self.whole(*sizes, states=("exp_avg", "exp_avg_sq"))
        out = self.dir / str(sizes[1])
        states = ("exp_manager.use_zero1_dcp=true", "exp_manager.async_checkpointing=true")
        native, again = out / "a.ckpt", out / "b.ckpt"
        self.trellis(
            *("checkpoint", "convert", file, *options, *states, "--to", "native"),
            *("--config", QUICKSTART, "--out", native),
        )
        peak = self.trellis("checkpoint", "reshard", native, TP4[0], "--out", again)[2]
        for folder in (native, again):
            self.assertTrue((folder / "optim/.metadata").exists(), folder)
        self.trellis("checkpoint", "diff", file, again)
        return peak, file.stat().st_size

    def test_states_in_dcp_stay_in_bounds_too(self):
        small, _ = self.states_peaks(2, 32, 48)
        large, size = self.states_peaks(2, self.HIDDEN, self.FFN)
        self.assertGreater(size, 256 * MIB)
        print(f"states in DCP: {(large - small) / MIB:.0f} MiB more than for a small model")
        self.assertLess(large - small, 96 * MIB)

    def test_it_does_not_grow_with_the_model(self):
        """The bar: twice the largest tensor (16 MiB) and 256 MiB; four threads take 32 MiB each."""
        small, _ = self.peaks(2, 32, 48)
        large, size = self.peaks(self.LAYERS, self.HIDDEN, self.FFN)
        self.assertGreater(size, 256 * MIB)
        for name, peak in large.items():
            print(f"{name}: {(peak - small[name]) / MIB:.0f} MiB more than for a small model")
            self.assertLess(peak - small[name], 96 * MIB, name)


if __name__ == "__main__":
    unittest.main()
