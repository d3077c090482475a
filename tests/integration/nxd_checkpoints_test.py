#!/usr/bin/env python3
"""Checkpoints of NxD, NxDT and NeMo Megatron for Neuron, as their documents describe the files, go
into any layout. The folders are made here, from whole tensors, without the program."""

import json
import os
import pathlib
import shutil
import sys
import types
import unittest

import cli_case
import late_change
import torch
import transformers
import yaml
from cli_case import QUICKSTART

LAYERS, HIDDEN, FFN, ROWS, SEQUENCE = 2, 32, 48, 272, 16
TP, PP, DP = 2, 2, 2
OURS = [
    f"model.num_layers={LAYERS}",
    f"model.hidden_size={HIDDEN}",
    f"model.ffn_hidden_size={FFN}",
    f"model.encoder_seq_length={SEQUENCE}",
    "precision.type=fp32",
    "data.global_batch_size=8",
    "data.micro_batch_size=1",
]
ONE_RANK = [
    "trainer.devices=1",
    "distributed_strategy.tensor_model_parallel_size=1",
    "distributed_strategy.pipeline_model_parallel_size=1",
    "model.make_vocab_size_divisible_by=16",  # the same 272 rows
]
GPT = [
    "model.num_kv_heads=4",
    "model.normalization=layernorm",
    "model.activation=gelu",
    "model.has_bias=true",
    "model.position_embedding_type=learned_absolute",
    "model.share_embeddings_and_output_weights=true",
]


# As NeMo-Megatron for Neuron names the keys.
NNM = f"""
name: llama
trainer: {{devices: 1, num_nodes: 1, precision: 32, max_steps: 7}}
model:
  micro_batch_size: 1
  global_batch_size: 8
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  encoder_seq_length: {SEQUENCE}
  max_position_embeddings: ${{.encoder_seq_length}}
  num_layers: {LAYERS}
  hidden_size: {HIDDEN}
  ffn_hidden_size: {FFN}
  num_attention_heads: 4
  num_query_groups: 4
  make_vocab_size_divisible_by: 16
  normalization: rmsnorm
  activation: swiglu
  bias: false
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  optim: {{name: adamw, lr: 1e-3}}
  tokenizer: {{library: byte-level}}
  data:
    data_prefix: [1.0, text]
    seq_length: {SEQUENCE}
    dataloader_type: single
    splits_string: "98,1,1"
"""


class TensorReference:
    """In place of the class of torch_xla."""

    def __init__(self, tid):
        self.tid = tid


TensorReference.__module__ = "torch_xla.utils.serialization"
TensorReference.__qualname__ = "TensorReference"
for name in ("torch_xla", "torch_xla.utils", "torch_xla.utils.serialization"):
    sys.modules.setdefault(name, types.ModuleType(name))
sys.modules["torch_xla.utils.serialization"].TensorReference = TensorReference


def save(file, state, xser):
    """As torch.save, or as NxD's xser: a file per tensor."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not xser:
        torch.save(state, file)
        return
    tensors = []

    def referenced(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value.clone())
            return TensorReference(len(tensors) - 1)
        if isinstance(value, dict):
            return {key: referenced(below) for key, below in value.items()}
        return value

    torch.save(referenced(state), file)
    folder = pathlib.Path(f"{file}.tensors")
    folder.mkdir()
    for number, tensor in enumerate(tensors):
        torch.save(tensor, folder / f"tensor_{number}.pt")
    info = {
        i: {"dtype": t.dtype, "shape": t.shape, "expert_model_parallel": False}
        for i, t in enumerate(tensors)
    }
    torch.save(info, f"{file}.info.pt")


def config_text():
    """The quickstart with the sizes of this page."""
    config = yaml.safe_load(QUICKSTART.read_text())
    for override in OURS + ONE_RANK:
        path, value = override.split("=")
        *sections, key = path.split(".")
        section = config
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = yaml.safe_load(value)
    return yaml.safe_dump(config)


def whole_weights(seed, kv_heads=2):
    config = transformers.LlamaConfig(
        vocab_size=ROWS,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
    )
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config)
    return {name: torch.rand_like(p) for name, p in model.named_parameters()}


def shard(name, tensor, tp):
    """Of Megatron's parallel layers: columns of what comes after a sum, else rows."""
    if tensor.dim() == 1:
        return tensor.clone()
    axis = 1 if "o_proj" in name or "down_proj" in name else 0
    return tensor.chunk(TP, axis)[tp].clone()


def local_weights(whole, tp, pp, stages=PP):
    """The state dict of a rank, in the order of the model: gate and up are one weight."""
    local = {}
    for name, tensor in whole.items():
        layer = int(name.split(".")[2]) if ".layers." in name else None
        stage = 0 if "embed" in name else stages - 1 if layer is None else layer * stages // LAYERS
        if stage != pp or "up_proj" in name:
            continue
        part = shard(name, tensor, tp)
        if "gate_proj" in name:
            up = shard(name, whole[name.replace("gate_proj", "up_proj")], tp)
            name, part = name.replace("gate_proj", "gate_up_proj"), torch.cat([part, up])
        local[name] = part
    return local


def optimizer_state(states, tp, pp, dp, step, stages=PP, copies=DP):
    """NxD's ZeRO-1: numbers count through the groups, those with weight decay first."""
    locals_ = {s: local_weights(whole, tp, pp, stages) for s, whole in states.items()}
    names = list(next(iter(locals_.values())))
    groups = [
        [n for n in names if locals_["exp_avg"][n].dim() > 1],
        [n for n in names if locals_["exp_avg"][n].dim() == 1],
    ]
    base, shapes, param_groups = {}, {}, []
    for group, decay in zip(groups, (0.1, 0.0)):
        first = len(base)
        for number, name in enumerate(group, first):
            base[number] = {
                state: local[name].chunk(copies)[dp].clone() for state, local in locals_.items()
            }
            base[number]["step"] = torch.tensor(float(step))
            shapes[number] = locals_["exp_avg"][name].shape
        ids = list(range(first, first + len(group)))
        param_groups.append({"lr": 1e-3, "weight_decay": decay, "params": ids})
    return {
        "state": {},
        "base_state": base,
        "shape_info": shapes,
        "param_groups": param_groups,
    }


class Case(cli_case.CheckedCase):
    def convert(self, source, *options, returncode=0):
        return self.trellis(
            *("checkpoint", "convert", source, *OURS, *options, "--to", "native"),
            *("--config", QUICKSTART, "--out", "native"),
            returncode=returncode,
        )

    def import_checkpoint(self, config, folder, *options, returncode=0, **more):
        """With its configuration, into native."""
        return self.trellis(
            *("import", config, "--out", "imported.yaml", "--checkpoint", folder, *options),
            *("--output-checkpoint", "native", "--verify"),
            returncode=returncode,
            **more,
        ).stdout

    def check(self, weights, states=None):
        """The result as one file, against the whole tensors."""
        self.trellis("checkpoint", "convert", "native", "--to", "full", "--out", "whole.pt")
        got = torch.load(self.dir / "whole.pt", weights_only=True)
        expected = dict(weights)
        for state, tensors in (states or {}).items():
            expected.update({f"optimizer.state.{state}.{n}": t for n, t in tensors.items()})
        self.assertEqual(set(got), set(expected))
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(got[name], tensor), name)

    def goes_on(self, checkpoint, run, *options):
        """Lines of the log of two more steps."""
        result = self.trellis(
            *("train", QUICKSTART, *OURS, "trainer.max_steps=7", "--device", "cpu", *options),
            f"exp_manager.resume_from_checkpoint={self.dir / checkpoint}",
            f"exp_manager.explicit_log_dir={self.dir / run}",
        )
        self.assertIn("step 5 is done", result.stdout + result.stderr)
        lines = (self.dir / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def nxdt(self, xser, prefix="", with_optimizer=True):
        """A folder of NxDT; whole weights and states."""
        folder = self.dir / "llama--step=5-consumed_samples=160.0.ckpt"
        weights = whole_weights(1)
        states = {"exp_avg": whole_weights(2), "exp_avg_sq": whole_weights(3)}
        for pp in range(PP):
            for tp in range(TP):
                rank = f"tp_rank_{tp:02d}_pp_rank_{pp:02d}.pt"
                local = {prefix + n: t for n, t in local_weights(weights, tp, pp).items()}
                save(folder / f"model/dp_rank_00_{rank}", local, xser)
                for dp in range(DP if with_optimizer else 0):
                    state = optimizer_state(states, tp, pp, dp, 5)
                    save(folder / f"optim/dp_rank_{dp:02d}_{rank}", state, xser)
        (folder / "checkpoint").write_text("1")
        (folder / "done").write_text("1")
        return folder, weights, states


class Nxdt(Case):
    def test_files_per_rank_with_states(self):
        folder, weights, states = self.nxdt(xser=False)
        self.convert(folder, *ONE_RANK)
        self.check(weights, states)
        said = json.loads(self.trellis("checkpoint", "inspect", "native", "--json").stdout)
        self.assertEqual((said["step"], said["consumed_samples"]), (5, 160))
        # A training goes on from it, and from the folder itself: another layout, the same numbers.
        converted = self.goes_on("native", "run")
        self.assertEqual([line["step"] for line in converted], [6, 7])
        direct = self.goes_on(folder, "direct")
        self.assertEqual([line["loss"] for line in direct], [line["loss"] for line in converted])
        self.assertEqual(self.goes_on(folder, "one", *ONE_RANK)[0]["step"], 6)

    def test_the_step_is_that_of_the_training_however_the_folder_is_called(self):
        folder, _, _ = self.nxdt(xser=False)
        renamed = folder.rename(self.dir / "of_a_friend")
        torch.save({"global_step": 9, "epoch": 0, "lr_schedulers": []}, renamed / "user_content.pt")
        result = self.trellis("checkpoint", "inspect", renamed, "--json")
        self.assertEqual(json.loads(result.stdout)["step"], 9)
        (renamed / "user_content.pt").unlink()
        result = self.trellis("checkpoint", "inspect", renamed, "--json")
        self.assertEqual(json.loads(result.stdout)["step"], 5, "the optimizer counted")

    def test_inspect_and_diff_show_files_or_weights(self):
        folder, weights, states = self.nxdt(xser=False)
        config = self.dir / "config.yaml"
        config.write_text(config_text())
        said = json.loads(self.trellis("checkpoint", "inspect", folder, "--json").stdout)
        self.assertEqual((said["format"], said["step"], said["consumed_samples"]), ("nxd", 5, 160))
        self.assertEqual(said["layout"], {"dp": DP, "pp": PP, "tp": TP})
        keys = {row["key"] for row in said["tensors"]}
        self.assertIn("model/dp_rank_00_tp_rank_01_pp_rank_01.pt:lm_head.weight", keys)
        self.assertIn("optim/dp_rank_01_tp_rank_00_pp_rank_00.pt:base_state/0/exp_avg", keys)
        said = json.loads(
            self.trellis("checkpoint", "inspect", folder, "--json", "--config", config).stdout
        )
        shapes = {row["key"]: row["shape"] for row in said["tensors"]}
        self.assertEqual(
            set(shapes),
            set(weights)
            | {f"optimizer.state.{state}.{name}" for state in states for name in weights},
        )
        self.assertEqual(shapes["lm_head.weight"], [ROWS, HIDDEN])
        self.convert(folder, *ONE_RANK)
        self.trellis("checkpoint", "diff", folder, "native", "--config", config)
        other = self.dir / "other.ckpt"
        shutil.copytree(folder, other)
        file = other / "model/dp_rank_00_tp_rank_01_pp_rank_01.pt"
        state = torch.load(file, weights_only=True)
        state["lm_head.weight"][3, 4] += 1
        torch.save(state, file)
        by_file = self.trellis("checkpoint", "diff", folder, other, "--json", returncode=5).stdout
        (row,) = json.loads(by_file)["differences"]
        self.assertEqual((row["key"].split(":")[1], row["elements"]), ("lm_head.weight", 1))
        by_weight = self.trellis(
            *("checkpoint", "diff", other, "native", "--json", "--config", config), returncode=5
        ).stdout
        self.assertEqual(json.loads(by_weight)["differences"][0]["key"], "lm_head.weight")
        error = self.trellis(
            *("checkpoint", "inspect", "native", "--config", config), returncode=2
        ).stderr
        self.assertIn("--config: is about folders of NxD", error)

    def test_its_configuration_imports_it(self):
        folder, weights, states = self.nxdt(xser=False)
        (self.dir / "mine.yaml").write_text(config_text())
        self.import_checkpoint("mine.yaml", folder)
        self.check(weights, states)

    def test_weights_that_are_not_the_sources_end_with_5(self):
        folder, _, _ = self.nxdt(xser=False)
        (self.dir / "mine.yaml").write_text(config_text())
        changed = folder / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"
        late = late_change.environment(self.dir, changed, "embed_tokens.weight")
        said = self.import_checkpoint("mine.yaml", folder, returncode=5, env=late)
        self.assertRegex(said, r"embed_tokens\.weight +values[^$]*1 are not those of the source")

    def test_xser_with_states(self):
        folder, weights, states = self.nxdt(xser=True)
        self.convert(folder, *ONE_RANK)
        self.check(weights, states)

    def test_names_with_a_prefix_and_weights_alone(self):
        folder, weights, _ = self.nxdt(xser=False, prefix="module.", with_optimizer=False)
        self.convert(folder, "--weights-only")
        self.check(weights)

    def test_init_from_is_as_from_whole_weights(self):
        folder, weights, _ = self.nxdt(xser=True)
        torch.save(weights, self.dir / "weights.pt")
        losses = []
        for run, place in (("a", folder), ("b", self.dir / "weights.pt")):
            self.trellis(
                *("train", QUICKSTART, *OURS, "trainer.max_steps=1", "--device", "cpu"),
                *(f"exp_manager.explicit_log_dir={self.dir / run}", "--init-from", place),
            )
            losses.append(json.loads((self.dir / run / "metrics.jsonl").read_text())["loss"])
        self.assertEqual(losses[0], losses[1])


class LegacyNxd(Case):
    def legacy(self, xser):
        folder, weights = self.dir / "legacy", whole_weights(1)
        for pp in range(PP):
            for tp in range(TP):
                path = folder / f"tp_rank_{tp:02d}_pp_rank_{pp:02d}"
                state = {"model": local_weights(weights, tp, pp), "step": 5}
                save(path if xser else path / "checkpoint.pt", state, xser)
        return folder, weights

    def test_folders(self):
        folder, weights = self.legacy(xser=False)
        (self.dir / "mine.yaml").write_text(config_text())
        self.import_checkpoint("mine.yaml", folder, "--weights-only")
        self.check(weights)

    def test_xser(self):
        folder, weights = self.legacy(xser=True)
        for file in folder.glob("*.info.pt"):
            file.unlink()  # NxD 0.6 and older wrote none
        self.convert(folder, "--weights-only", *ONE_RANK)
        self.check(weights)

    def check_goes_on(self, folder, weights, states):
        """In another layout: every tensor, and the losses of the converted one."""
        self.convert(folder, *ONE_RANK)
        self.check(weights, states)
        runs = [self.goes_on(each, f"run-{each}", *ONE_RANK) for each in ("native", folder.name)]
        converted, direct = ([(line["step"], line["loss"]) for line in run] for run in runs)
        self.assertEqual([step for step, _ in direct], [6, 7])
        self.assertEqual(direct, converted)

    def test_a_training_goes_on_with_states_of_zero1(self):
        """save() and save_sharded_state_dict(), xser; the step is what the optimizer counted."""
        folder, weights = self.dir / "legacy", whole_weights(1)
        states = {"exp_avg": whole_weights(2), "exp_avg_sq": whole_weights(3)}
        for tp in range(TP):
            local = {"model": local_weights(weights, tp, 0, stages=1)}
            save(folder / f"tp_rank_{tp:02d}_pp_rank_00", local, xser=True)
            for dp in range(DP):
                state = optimizer_state(states, tp, 0, dp, 5, stages=1)
                save(folder / f"optim.dp_rank_{dp:02d}.tp_rank_{tp:02d}", state, xser=False)
        self.check_goes_on(folder, weights, states)
        (folder / "optim.dp_rank_01.tp_rank_00").unlink()
        error = self.convert(folder, returncode=2).stderr
        self.assertIn("optim.dp_rank_01.tp_rank_00: is missing", error)

    def test_states_that_pipeline_ranks_wrote_over_each_other_are_not_read(self):
        folder, weights = self.legacy(xser=False)
        states = {"exp_avg": whole_weights(2), "exp_avg_sq": whole_weights(3)}
        for tp in range(TP):
            for dp in range(DP):
                state = optimizer_state(states, tp, PP - 1, dp, 5)
                save(folder / f"optim.dp_rank_{dp:02d}.tp_rank_{tp:02d}", state, xser=False)
        said = self.convert(folder, *ONE_RANK, returncode=2).stderr
        self.assertIn("of all pipeline ranks one name", said)
        self.assertIn("optimizer.state.exp_avg.model.norm.weight", said)
        self.convert(folder, "--weights-only", *ONE_RANK)
        self.check(weights)
        error = self.trellis(
            *("train", QUICKSTART, *OURS, "--device", "cpu", *ONE_RANK),
            f"exp_manager.resume_from_checkpoint={folder}",
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
            returncode=2,
        ).stderr
        self.assertIn("without optimizer states", error)

    def test_a_training_goes_on_with_states_next_to_the_weights(self):
        """Of torch's optimizer, in the dict that save() got."""
        folder, weights = self.legacy(xser=False)
        states = {"exp_avg": whole_weights(2), "exp_avg_sq": whole_weights(3)}
        for pp in range(PP):
            for tp in range(TP):
                file = folder / f"tp_rank_{tp:02d}_pp_rank_{pp:02d}/checkpoint.pt"
                zero1 = optimizer_state(states, tp, pp, 0, 5, copies=1)
                state = {"state": zero1["base_state"], "param_groups": zero1["param_groups"]}
                content = torch.load(file, weights_only=True)
                torch.save({**content, "optimizer": state}, file)
        self.check_goes_on(folder, weights, states)


class Nnm(Case):
    def test_layers_count_from_zero_in_each_stage(self):
        """From files of a GPT whose names are those of Megatron, here and there."""
        config = transformers.GPT2Config(
            vocab_size=ROWS,
            n_positions=SEQUENCE,
            n_embd=HIDDEN,
            n_inner=FFN,
            n_layer=LAYERS,
            n_head=4,
            activation_function="gelu",
        )
        torch.manual_seed(1)
        transformers.GPT2LMHeadModel(config).save_pretrained(self.dir / "hub")
        self.trellis(
            *("checkpoint", "import-hf", "hub", *OURS, *GPT, "--config", QUICKSTART),
            *("--out", "expected"),
        )
        for file in (self.dir / "expected/model").iterdir():
            tp, pp = int(file.name[19:21]), int(file.name[30:32])
            state = {
                "model." + name.replace(f".layers.{pp}.", ".layers.0."): tensor
                for name, tensor in torch.load(file, weights_only=True).items()
            }
            path = self.dir / f"nnm.ckpt/tp_rank_{tp:02d}_pp_rank_{pp:03d}"
            save(path / "model_optim_rng.ckpt", {"state_dict": state, "epoch": 0}, xser=False)
        self.convert("nnm.ckpt", *GPT, *ONE_RANK, "--weights-only")
        self.trellis("checkpoint", "diff", "expected", "native")

    def test_a_llama_of_nxdts_megatron_class(self):
        """Its own names; query, key and value of each head are neighbours. Lightning's states of
        the optimizer are in the same files: a training goes on from them."""
        folder, weights, states = self.nnm()
        self.convert("nnm.ckpt", "model.num_kv_heads=4", *ONE_RANK)
        self.check(weights, states)
        losses = [
            [line["loss"] for line in self.goes_on(place, f"run_{place}", "model.num_kv_heads=4")]
            for place in ("native", "nnm.ckpt")
        ]
        self.assertEqual(losses[0], losses[1])
        said = json.loads(self.trellis("checkpoint", "inspect", folder, "--json").stdout)
        self.assertEqual((said["format"], said["step"]), ("nnm", 5))

    def nnm(self):
        """A folder, whole weights and states."""
        weights = whole_weights(1, kv_heads=4)
        states = {f"exp_avg{end}": whole_weights(seed, 4) for seed, end in ((2, ""), (3, "_sq"))}
        folder = self.dir / "nnm.ckpt"
        for pp in range(PP):
            for tp in range(TP):
                local = {s: self.megatron_names(whole, tp, pp) for s, whole in states.items()}
                names = list(local["exp_avg"])
                matrices = [n for n in names if local["exp_avg"][n].dim() > 1]
                groups = [matrices, [n for n in names if n not in matrices]]
                ids = {name: i for i, name in enumerate(groups[0] + groups[1])}
                state = {
                    i: {**{s: local[s][n] for s in states}, "step": torch.tensor(5.0)}
                    for n, i in ids.items()
                }
                param_groups = [
                    {"lr": 1e-3, "weight_decay": decay, "params": [ids[n] for n in group]}
                    for group, decay in zip(groups, (0.1, 0.0))
                ]
                content = {
                    "state_dict": self.megatron_names(weights, tp, pp),
                    "optimizer_states": [{"state": state, "param_groups": param_groups}],
                    "global_step": 5,
                }
                path = folder / f"tp_rank_{tp:02d}_pp_rank_{pp:03d}"
                save(path / "model_optim_rng.ckpt", content, xser=False)
        return folder, weights, states

    def test_its_configuration_imports_it(self):
        """NeMo's keys, one rank; the moments come along."""
        folder, weights, states = self.nnm()
        (self.dir / "nnm.yaml").write_text(NNM)
        said = self.import_checkpoint("nnm.yaml", folder, "--from", "nemo")
        self.assertIn("source", said)
        self.check(weights, states)

    @staticmethod
    def megatron_names(whole, tp, pp):
        """A rank's part in the order of the model."""
        head, path = HIDDEN // 4, f"model.layers.{pp}."  # a layer of each stage

        def plain(name):
            return shard(name, whole[name], tp)

        parts = [
            whole[f"{path}self_attn.{part}_proj.weight"].view(4, 1, head, HIDDEN) for part in "qkv"
        ]
        attention = torch.cat(parts, 1).chunk(TP)[tp].reshape(-1, HIDDEN).clone()
        gate_up = [whole[f"{path}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        layer = {
            "input_layernorm": plain(f"{path}input_layernorm.weight"),
            "self_attention.query_key_value": attention,
            "self_attention.dense": plain(f"{path}self_attn.o_proj.weight"),
            "post_attention_layernorm": plain(f"{path}post_attention_layernorm.weight"),
            "mlp.dense_h_to_4h": torch.cat([part.chunk(TP)[tp] for part in gate_up]),
            "mlp.dense_4h_to_h": plain(f"{path}mlp.down_proj.weight"),
        }
        state = {} if pp else {"embedding.word_embeddings": plain("model.embed_tokens.weight")}
        state |= {f"encoder.layers.0.{name}": tensor for name, tensor in layer.items()}
        if pp == PP - 1:
            state["encoder.final_layernorm"] = plain("model.norm.weight")
            state["output_layer"] = plain("lm_head.weight")
        return {f"model.language_model.{name}.weight": t for name, t in state.items()}


class Refused(Case):
    def test_without_a_configuration(self):
        folder, _, _ = self.nxdt(xser=False)
        error = self.trellis(
            *("checkpoint", "convert", folder, "--to", "full", "--out", "a.pt"), returncode=2
        ).stderr
        self.assertIn("convert --to native --config", error)

    def test_a_training_does_not_go_on_without_states(self):
        folder, _, _ = self.nxdt(xser=False, with_optimizer=False)
        error = self.trellis(
            *("train", QUICKSTART, *OURS, "trainer.max_steps=6", "--device", "cpu"),
            *(f"exp_manager.resume_from_checkpoint={folder}",),
            *(f"exp_manager.explicit_log_dir={self.dir / 'run'}",),
            returncode=2,
        ).stderr
        self.assertIn("format nxd without optimizer states", error)
        self.assertIn("--init-from", error)

    def test_all_missing_files_are_named(self):
        folder, _, _ = self.nxdt(xser=False)
        for name in (
            "model/dp_rank_00_tp_rank_01_pp_rank_00.pt",
            "optim/dp_rank_01_tp_rank_00_pp_rank_01.pt",
        ):
            (folder / name).unlink()
        error = self.convert(folder, returncode=2).stderr
        self.assertIn("model/dp_rank_00_tp_rank_01_pp_rank_00.pt: is missing", error)
        self.assertIn("optim/dp_rank_01_tp_rank_00_pp_rank_01.pt: is missing", error)

    def test_another_model_is_named_by_its_shapes(self):
        folder, _, _ = self.nxdt(xser=False, with_optimizer=False)
        error = self.convert(
            folder, "model.ffn_hidden_size=64", "--weights-only", returncode=2
        ).stderr
        self.assertIn("gate_up_proj.weight: expected the shape [64, 32] by the config", error)
        self.assertIn("got [48, 32]", error)

    def test_pickles_run_nothing(self):
        folder, _, _ = self.nxdt(xser=False, with_optimizer=False)
        evil = self.dir / "evil"

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(evil),)

        file = folder / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"
        torch.save({"model.norm.weight": Evil()}, file)
        self.assertIn(file.name, self.convert(folder, "--weights-only", returncode=2).stderr)
        self.assertFalse(evil.exists())


if __name__ == "__main__":
    unittest.main()
