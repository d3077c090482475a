#!/usr/bin/env python3
"""Mixtures of experts in folders of NxD: the program reads what its rules (nxd_mixture.py) give,
and what it writes is compared with them."""

import itertools
import json
import shutil
import unittest

import nxd_checkpoints_test as nxd
import torch
import torch.distributed.checkpoint
import yaml
from cli_case import QUICKSTART
from nxd_checkpoints_test import FFN, HIDDEN, ONE_RANK
from nxd_mixture import (
    EXPERTS,
    GATE_UP,
    MEGATRON_NAMES,
    as_rows,
    file_name,
    is_expert,
    local_weights,
    rank_files,
    save_xser,
    whole_weights,
    zero1_dict,
)

MOE = [f"model.moe={{num_experts: {EXPERTS}, top_k: 2, dropless: true}}"]
# EP, TP, PP, DP. Of three ranks with ZeRO-1 the last has padding alone.
LAYOUTS = [(1, 1, 1, 3), (1, 2, 2, 2), (2, 1, 2, 4), (2, 2, 1, 6), (4, 1, 1, 4), (4, 2, 2, 4)]


def overrides(ep, tp, pp, dp):
    return [
        f"trainer.devices={tp * pp * dp}",
        f"distributed_strategy.tensor_model_parallel_size={tp}",
        f"distributed_strategy.pipeline_model_parallel_size={pp}",
        f"distributed_strategy.expert_model_parallel_size={ep}",
        f"model.make_vocab_size_divisible_by={16 // tp}",
        f"data.global_batch_size={2 * dp}",
    ]


class Case(nxd.Case):
    def setUp(self):
        super().setUp()
        self.weights = whole_weights(1)
        self.states = {"exp_avg": whole_weights(2), "exp_avg_sq": whole_weights(3)}

    def make(self, files, name="mixture--step=5-consumed_samples=160.0.ckpt", xser=False):
        folder = self.dir / name
        folder.mkdir()
        for path, state in files.items():
            nxd.save(folder / path, state, xser)
        for mark in ("checkpoint", "done"):
            (folder / mark).write_text("1")
        return folder

    def convert(self, source, *options, to="native", out="native", returncode=0):
        return self.trellis(
            *("checkpoint", "convert", source, *nxd.OURS, *MOE, *options, "--to", to),
            *("--config", QUICKSTART, "--out", out),
            returncode=returncode,
        )

    def check(self, states=True):
        rows = {state: as_rows(whole) for state, whole in self.states.items()} if states else None
        super().check(as_rows(self.weights), rows)

    def same(self, got, expected, where):
        """Dicts with tensors; what is only in `got` is no part of NxD's."""
        if isinstance(expected, torch.Tensor):
            self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape), where)
            self.assertTrue(torch.equal(got, expected), where)
        elif isinstance(expected, dict):
            for key, value in expected.items():
                self.assertIn(key, got, where)
                self.same(got[key], value, f"{where}/{key}")
        elif isinstance(expected, list):
            self.assertEqual(len(got), len(expected), where)
            for i, value in enumerate(expected):
                self.same(got[i], value, f"{where}/{i}")
        elif not where.endswith("/lr"):
            self.assertEqual(got, expected, where)

    def tensor_files(self, folder):
        return {
            str(path.relative_to(self.dir / folder)): path.read_bytes()
            for part in ("model", "optim")
            for path in (self.dir / folder / part).rglob("*.pt")
        }


class Layouts(Case):
    def test_every_layout_in_and_out(self):
        native = None
        for sizes in LAYOUTS:
            with self.subTest(sizes):
                for path in self.dir.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                files = rank_files(sizes, self.weights, self.states)
                folder = self.make(files)
                self.convert(folder, *ONE_RANK)
                self.check()
                native = native or self.tensor_files("native")
                self.assertEqual(self.tensor_files("native"), native)
                self.convert("native", *overrides(*sizes), to="nxd", out="written")
                written = self.tensor_files("written")
                self.assertEqual(set(written), set(files))
                for name, state in files.items():
                    got = torch.load(self.dir / "written" / name, weights_only=True)
                    self.same(got, state, name)
                self.assertFalse((self.dir / "written/manifest.json").exists())
                shutil.rmtree(self.dir / "native")
                self.convert("written", *ONE_RANK)
                self.assertEqual(self.tensor_files("native"), native)

    def test_a_training_goes_on_in_another_layout(self):
        """With the losses of the native checkpoint, from files of either program."""
        sizes = (2, 2, 1, 4)
        folder = self.make(rank_files(sizes, self.weights, self.states), xser=True)
        self.convert(folder, *ONE_RANK)
        self.convert("native", *overrides(*sizes), to="nxd", out="written")
        runs = [
            [
                (line["step"], line["loss"])
                for line in self.goes_on(source, f"run{i}", *MOE, *layout)
            ]
            for layout in (ONE_RANK, overrides(4, 1, 1, 4))
            for i, source in enumerate(("native", folder.name, "written"))
            if not shutil.rmtree(self.dir / f"run{i}", ignore_errors=True)
        ]
        self.assertEqual([step for step, _ in runs[0]], [6, 7])
        for i in (1, 2):
            self.assertEqual(runs[i], runs[0])
            self.assertEqual(runs[3 + i], runs[3])


class WithoutZero1(Case):
    SIZES = (2, 2, 2, 2)
    ZERO1 = ["distributed_strategy.zero1=false"]

    def ranks(self):
        """File name, EP rank, weights and torch's dict of each rank."""
        for ep, tp, pp in itertools.product(range(2), range(2), range(2)):
            local, *moments = (
                local_weights(whole, ep, tp, pp, self.SIZES)
                for whole in (self.weights, *self.states.values())
            )
            moments = dict(zip(self.states, moments))
            whole = zero1_dict(moments, list(local), 0, 1)
            states = {key: whole[key] for key in ("base_state", "param_groups")}
            states["state"] = states.pop("base_state")
            for tensors in (local, *moments.values()):
                for name, tensor in tensors.items():
                    tensor.expert_model_parallel = is_expert(name)
            for name, number in zip(self.order(local), states["state"]):
                for tensor in states["state"][number].values():
                    tensor.expert_model_parallel = is_expert(name)
            yield file_name(tp, pp, ep), ep, local, states

    @staticmethod
    def order(local):
        return sorted(local, key=lambda name: local[name].dim() == 1)

    def test_dense_tensors_of_xser_are_those_of_the_first_expert_rank(self):
        folder = self.make({})
        for name, ep, local, states in self.ranks():
            save_xser(folder / "model" / name, local, ep)
            save_xser(folder / "optim" / name, states, ep)
        self.convert(folder, *ONE_RANK, *self.ZERO1)
        self.check()
        native = self.tensor_files("native")
        options = [*overrides(*self.SIZES), *self.ZERO1]
        self.convert("native", *options, to="nxd", out="written")
        for name, _, local, states in self.ranks():
            for part, expected in (("model", local), ("optim", states)):
                got = torch.load(self.dir / "written" / part / name, weights_only=True)
                self.same(got, expected, f"{part}/{name}")
                self.assertTrue(part == "model" or set(got) >= set(states))
        self.check_goes_on_in_torch(local, got)
        shutil.rmtree(self.dir / "native")
        self.convert("written", *ONE_RANK, *self.ZERO1)
        self.assertEqual(self.tensor_files("native"), native)

    def check_goes_on_in_torch(self, local, states):
        names = self.order(local)
        parameters = {name: torch.nn.Parameter(local[name].clone()) for name in names}
        groups = [
            {"params": [parameters[n] for n in names if (local[n].dim() > 1) == decays]}
            for decays in (True, False)
        ]
        optimizer = torch.optim.AdamW(groups)
        optimizer.load_state_dict(states)
        before = [states["state"][i]["exp_avg"].clone() for i in range(len(names))]
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for moment, parameter in zip(before, parameters.values()):
            state = optimizer.state[parameter]
            self.assertEqual(state["step"].item(), 6)
            self.assertTrue(torch.allclose(state["exp_avg"], 0.9 * moment + 0.1))

    def test_states_that_nxd_did_not_write_are_not_read(self):
        """Without xser the first data-parallel rank alone writes, which has a part of the
        experts."""
        files = {}
        for name, ep, local, states in self.ranks():
            files[f"model/{name}"] = local
            if ep == 0:
                files[f"optim/{name}"] = states
        folder = self.make(files)
        error = self.convert(folder, *ONE_RANK, *self.ZERO1, returncode=2).stderr
        self.assertIn("has the states of 1 of 2 expert-parallel ranks", error)
        self.convert(folder, *ONE_RANK, *self.ZERO1, "--weights-only")
        self.check(states=False)


class OtherModels(Case):
    """Names and forms of what the other tests have not."""

    def round_trip(self, *options):
        """The state dicts of two EP ranks, and whole weights in rows."""
        self.trellis(
            *("train", QUICKSTART, *nxd.OURS, *MOE, *options, "trainer.max_steps=1"),
            *("--device", "cpu", *overrides(2, 1, 1, 4)),
            *("exp_manager.create_checkpoint_callback=true",),
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
        )
        (saved,) = (self.dir / "run/checkpoints").glob("*-last.ckpt")
        native = self.tensor_files(saved)
        layout = [*options, *overrides(2, 1, 1, 4)]
        self.convert(saved, *layout, to="nxd", out="written")
        self.convert("written", *layout)
        self.trellis("checkpoint", "diff", saved, "native")
        back = self.tensor_files("native")
        self.assertEqual(set(back), set(native))
        for name in native:  # those of states have the learning rate, too
            self.assertTrue(name.startswith("optim") or back[name] == native[name], name)
        self.trellis("checkpoint", "convert", saved, "--to", "full", "--out", "whole.pt")
        whole = torch.load(self.dir / "whole.pt", weights_only=True)
        ranks = [self.dir / "written/model" / file_name(0, 0, ep) for ep in range(2)]
        return [torch.load(rank, weights_only=True) for rank in ranks], whole

    def test_masters(self):
        self.round_trip("precision.type=mixed_precision")
        states = torch.load(self.dir / f"written/optim/{file_name(0, 0)}", weights_only=True)
        self.assertEqual(set(states["sharded_master_weights"]), set(states["base_state"]))

    def test_a_megatron_model_has_its_mixture_in_a_module(self):
        ranks, whole = self.round_trip(*nxd.GPT, "model.activation=swiglu", "model.has_bias=false")
        path = "language_model.encoder.layers.1.mlp."
        down = whole[path + "expert_mlps.mlp_op.down_proj.weight"].view(EXPERTS, HIDDEN, FFN)
        for local, own in zip(ranks, down.chunk(2)):
            got = local[path + "moe.expert_mlps.mlp_op.down_proj.weight"]
            self.same(got, own.transpose(1, 2), "down_proj")
            router = local[path + "moe.router.linear_router.weight"]
            self.same(router, whole[path + "router.linear_router.weight"], "router")

    def test_a_mixtral_of_nxdts_megatron_class(self):
        """Query, key and value of each head are neighbours, mixtures are in a module."""
        sizes, heads = (2, 1, 2, 2), 4
        self.weights = whole_weights(1, heads)
        files = rank_files(sizes, self.weights)
        for path, local in files.items():
            files[path] = {}
            for name, tensor in local.items():
                if "k_proj" in name or "v_proj" in name:
                    continue
                if "q_proj" in name:
                    qkv = [local[name.replace("q_proj", f"{p}_proj")] for p in "qkv"]
                    tensor = torch.stack([t.view(heads, -1, HIDDEN) for t in qkv], 1)
                    tensor = tensor.reshape(-1, HIDDEN)
                for ours, theirs in MEGATRON_NAMES.items():
                    name = name.replace(ours, theirs)
                files[path][name] = tensor.clone()
        options = ["model.num_kv_heads=4", "--weights-only"]
        self.convert(self.make(files), *ONE_RANK, *options)
        self.check(states=False)

    def test_legacy_folders(self):
        sizes = (1, 2, 1, 3)
        folder = self.dir / "legacy"
        for path, state in rank_files(sizes, self.weights, self.states).items():
            _, _, dp, _, _, tp, *_ = path.split("/")[1].split("_")
            if path.startswith("model"):
                nxd.save(folder / f"tp_rank_{tp}_pp_rank_00/checkpoint.pt", {"model": state}, False)
            else:
                nxd.save(folder / f"optim.dp_rank_{dp}.tp_rank_{tp}", state, False)
        self.convert(folder, *ONE_RANK)
        self.check()


class InDcp(Case):
    """use_zero1_dcp: optim/ is a folder of torch.distributed.checkpoint."""

    def test_nxds_states(self):
        sizes = (1, 2, 1, 2)
        files = rank_files(sizes, self.weights)
        folder = self.make(files)
        states = {}
        for tp in range(2):
            for state, whole in self.states.items():
                for name, tensor in local_weights(whole, 0, tp, 0, sizes).items():
                    states[f"base_state.{name}.{state}|tp-{tp:04d}"] = tensor
                    states[f"base_state.{name}.step"] = torch.tensor(5.0)
        torch.distributed.checkpoint.save(states, checkpoint_id=folder / "optim", no_dist=True)
        self.convert(folder, *ONE_RANK)
        self.check()

    def test_files_of_the_program_without_their_manifest(self):
        for options in (
            [],
            ["exp_manager.async_checkpointing=true", "exp_manager.use_zero1_dcp=true"],
        ):
            with self.subTest(options):
                log = self.dir / f"run{len(options)}"
                self.trellis(
                    *("train", QUICKSTART, *nxd.OURS, *MOE, *options, *overrides(2, 2, 1, 4)),
                    *("trainer.max_steps=2", "exp_manager.create_checkpoint_callback=true"),
                    *("--device", "cpu", f"exp_manager.explicit_log_dir={log}"),
                )
                (saved,) = (log / "checkpoints").glob("*-last.ckpt")
                bare = self.dir / f"bare{len(options)}"
                shutil.copytree(saved, bare)
                (bare / "manifest.json").unlink()
                self.convert(bare, *ONE_RANK, out=f"native{len(options)}")
                self.trellis("checkpoint", "diff", saved, f"native{len(options)}")


class Dense(Case):
    def test_what_goes_out_is_what_came_in(self):
        folder, _, _ = self.nxdt(xser=False)
        nxd.Case.convert(self, folder)
        self.trellis("checkpoint", "convert", "native", "--to", "nxd", "--out", "written")
        files = [path.relative_to(folder) for path in folder.rglob("*.pt")]
        self.assertEqual(len(files), nxd.TP * nxd.PP * (1 + nxd.DP))
        for file in files:
            got, expected = (
                torch.load(each / file, weights_only=True)
                for each in (self.dir / "written", folder)
            )
            self.same(got, expected, str(file))
        said = json.loads(self.trellis("checkpoint", "inspect", "written", "--json").stdout)
        self.assertEqual((said["format"], said["step"]), ("nxd", 5))
        self.assertEqual(said["consumed_samples"], 160)


class Refused(Case):
    SIZES = (2, 1, 1, 2)

    def test_forms_that_are_none_are_named(self):
        path = f"model/{file_name(0, 0, 1)}"
        key = f"model.layers.1.{GATE_UP}"
        forms = {
            "[2, 96, 32]": lambda tensor: tensor.transpose(1, 2),
            "[1, 32, 96]": lambda tensor: tensor[:1],
            "[2, 32, 48]": lambda tensor: tensor[:, :, :FFN],
            "[3072]": lambda tensor: tensor.flatten()[: HIDDEN * 2 * FFN],
        }
        for got, change in forms.items():
            with self.subTest(got):
                files = rank_files(self.SIZES, self.weights)
                files[path][key] = change(files[path][key]).clone()
                folder = self.make(files)
                error = self.convert(folder, *ONE_RANK, "--weights-only", returncode=2).stderr
                said = f"{path}: {key}: expected the shape [2, 32, 96] by the configuration, got"
                self.assertIn(f"{said} {got}", error)
                self.assertFalse((self.dir / "native/done").exists())
                shutil.rmtree(folder)

    def test_files_states_and_numbers_that_are_missing_are_named(self):
        files = rank_files(self.SIZES, self.weights, self.states)
        folder = self.make(files)
        state = files[f"optim/{file_name(0, 0, dp=1)}"]
        number = max(state["base_state"])
        state["base_state"][number]["exp_avg"] = torch.rand(1, FFN, HIDDEN)
        torch.save(state, folder / f"optim/{file_name(0, 0, dp=1)}")
        error = self.convert(folder, *ONE_RANK, returncode=2).stderr
        said = f"base_state/{number}/exp_avg: expected the shape [2, 48, 32]"
        self.assertIn(f"{said} by the configuration, got [1, 48, 32]", error)
        del state["ep_base_state_offset"]
        torch.save(state, folder / f"optim/{file_name(0, 0, dp=1)}")
        error = self.convert(folder, *ONE_RANK, returncode=2).stderr
        self.assertIn("ep_base_state_offset", error)
        (folder / f"model/{file_name(0, 0, 1)}").rename(folder / f"model/{file_name(0, 0, 2)}")
        error = self.convert(folder, *ONE_RANK, returncode=2).stderr
        self.assertIn("has files of 2 data-parallel ranks: expected a multiple of the 3", error)
        for file in (folder / "optim").iterdir():
            file.unlink()
        error = self.convert(folder, *ONE_RANK, returncode=2).stderr
        self.assertIn(f"model/{file_name(0, 0, 1)}: is missing", error)

    def test_another_number_of_experts(self):
        folder = self.make(rank_files(self.SIZES, self.weights))
        more = "model.moe={num_experts: 8, top_k: 2, dropless: true}"
        error = self.convert(folder, *ONE_RANK, more, "--weights-only", returncode=2).stderr
        self.assertIn("expected the shape [4, 32, 96] by the configuration, got [2, 32, 96]", error)

    def test_context_parallelism_is_not_written(self):
        self.convert(self.make(rank_files(self.SIZES, self.weights)), *ONE_RANK, "--weights-only")
        error = self.convert(
            *("native", "distributed_strategy.context_parallel_size=2", "trainer.devices=8"),
            *("model.fusions.ring_attention=true",),
            to="nxd",
            out="written",
            returncode=2,
        ).stderr
        self.assertIn("context_parallel_size: expected 1 for files of NxD", error)


class Shown(Case):
    def test_inspect_and_diff_show_files_or_weights(self):
        folder = self.make(rank_files((2, 1, 1, 2), self.weights, self.states))
        said = json.loads(self.trellis("checkpoint", "inspect", folder, "--json").stdout)
        self.assertEqual(said["layout"], {"dp": 2, "ep": 2, "pp": 1, "tp": 1})
        shapes = {row["key"]: row["shape"] for row in said["tensors"]}
        key = f"model.layers.1.{GATE_UP}"
        self.assertEqual(shapes[f"model/{file_name(0, 0, 1)}:{key}"], [2, HIDDEN, 2 * FFN])
        self.convert(folder, *ONE_RANK)
        config = self.dir / "config.yaml"
        content = yaml.safe_load(nxd.config_text())
        content["model"]["moe"] = {"num_experts": EXPERTS, "top_k": 2, "dropless": True}
        config.write_text(yaml.safe_dump(content))
        said = self.trellis("checkpoint", "inspect", folder, "--json", "--config", config).stdout
        shapes = {row["key"]: row["shape"] for row in json.loads(said)["tensors"]}
        self.assertEqual(shapes[key], [EXPERTS * 2 * FFN, HIDDEN])
        self.trellis("checkpoint", "diff", folder, "native", "--config", config)
        self.trellis("checkpoint", "verify", folder)
        file = folder / f"model/{file_name(0, 0, 1)}"
        content = bytearray(file.read_bytes())
        content[content.find(self.weights["model.layers.1.down"][3, 0, 0:1].numpy().tobytes())] ^= 1
        file.write_bytes(content)
        error = self.trellis("checkpoint", "verify", folder, returncode=2)
        self.assertIn(file.name, error.stdout + error.stderr)
        error = self.convert(folder, *ONE_RANK, out="other", returncode=2).stderr
        self.assertIn(file.name, error)


if __name__ == "__main__":
    unittest.main()
