#!/usr/bin/env python3
"""`trellis import`: what becomes of each key of another program's configuration."""

import json
import pathlib
import random
import shutil
import unittest

import yaml
from cli_case import SOURCE, Case

EXAMPLES = sorted((SOURCE / "examples/nxdt").glob("*.yaml"))

# NxDT's table "NeMo to NxDT", row by row: section.key, a value that NeMo's examples have, and the
# setting that it becomes (=: the same name; none: the feature does not exist or does nothing).
NEMO_ROWS = """
name gpt =
restore_from_path null
trainer.devices 8 =
trainer.num_nodes 2 =
trainer.accelerator gpu
trainer.precision bf16 precision.type
trainer.logger false
trainer.enable_checkpointing false
trainer.use_distributed_sampler false
trainer.max_epochs -1 =
trainer.max_steps 100 =
trainer.log_every_n_steps 10 =
trainer.val_check_interval 50 =
trainer.limit_val_batches 5 =
trainer.limit_test_batches 5 =
trainer.accumulate_grad_batches 1
trainer.gradient_clip_val 1.0 =
trainer.benchmark false
trainer.enable_model_summary false
exp_manager.log_local_rank_0_only true =
exp_manager.create_tensorboard_logger true =
exp_manager.explicit_log_dir logs =
exp_manager.exp_dir runs =
exp_manager.name gpt =
exp_manager.create_wandb_logger true
exp_manager.wandb_logger_kwargs.project mine
exp_manager.resume_if_exists true =
exp_manager.resume_ignore_no_checkpoint true =
exp_manager.create_checkpoint_callback true =
exp_manager.checkpoint_callback_params.mode max =
model.mcore_gpt false
model.tensor_model_parallel_size 4 distributed_strategy.=
model.pipeline_model_parallel_size 2 distributed_strategy.=
model.virtual_pipeline_model_parallel_size 2 distributed_strategy.=
model.sequence_parallel true distributed_strategy.sequence_parallel
model.micro_batch_size 1 data.micro_batch_size
model.global_batch_size 16 data.global_batch_size
model.tokenizer.library megatron data.tokenizer.library
model.data.seq_length 64 data.seq_length
model.encoder_seq_length 64 =
model.max_position_embeddings 64 =
model.make_vocab_size_divisible_by 128 =
model.pre_process true
model.post_process true
model.persist_layer_norm true
model.share_embeddings_and_output_weights true =
model.position_embedding_type rope =
model.rotary_percentage 1.0 =
model.transformer_block_type pre_ln =
model.has_bias false =
model.num_query_groups 4 model.num_kv_heads
model.native_amp_init_scale 4294967296
model.native_amp_growth_interval 1000
model.hysteresis 2
model.fp32_residual_connection false =
model.fp16_lm_cross_entropy false
model.megatron_amp_O2 true
model.grad_div_ar_fusion true
model.gradient_accumulation_fusion true
model.bias_activation_fusion true
model.bias_dropout_add_fusion true
model.masked_softmax_fusion true
model.seed 1234 seed
model.resume_from_checkpoint null exp_manager.resume_from_checkpoint
model.use_cpu_initialization false
model.onnx_safe false
model.apex_transformer_log_level 30
model.gradient_as_bucket_view true
model.sync_batch_comm false
model.activations_checkpoint_granularity selective =
model.activations_checkpoint_method uniform
model.activations_checkpoint_num_layers null
model.num_micro_batches_with_partial_activation_checkpoints null
model.activations_checkpoint_layers_per_pipeline null
model.disable_layer_norm_checkpointing true
model.transformer_engine false
model.fp8 false
model.fp8_e4m3 false
model.fp8_hybrid false
model.fp8_margin 0
model.use_emha false
model.nsys_profile.enabled false
model.optim.name adamw =
"""


def nested(rows):
    """{"a.b": "1"} as the text of a YAML file."""
    tree = {}
    for key, value in rows.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value

    def lines(node, indent):
        for key, value in node.items():
            if isinstance(value, dict):
                yield f"{indent}{key}:"
                yield from lines(value, indent + "  ")
            else:
                yield f"{indent}{key}: {value}"

    return "\n".join(lines(tree, "")) + "\n"


class ImportCase(Case):
    def write(self, text, name="source.yaml"):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def imported(self, source, *args):
        """(document, exit code)."""
        result = self.trellis("import", source, "--json", *args)
        self.assertTrue(result.stdout, result.stderr)
        return json.loads(result.stdout), result.returncode


class Nxdt(ImportCase):
    def test_every_key_of_the_examples_is_classified_and_none_is_lost(self):
        self.assertEqual(len(EXAMPLES), 22)
        for file in EXAMPLES:
            with self.subTest(file=file.name):
                document, code = self.imported(file)
                self.assertEqual((code, document["problems"]), (0, []))
                self.assertEqual(document["from"], "nxdt")
                self.assertEqual(document["counts"]["unclassified"], 0)
                self.assertEqual(sum(document["counts"].values()), len(document["keys"]))

    def test_the_plan_of_the_result_is_that_of_the_source(self):
        examples = self.dir / "examples"  # a model_config is relative to its file
        shutil.copytree(SOURCE / "examples/nxdt", examples)
        for file in EXAMPLES:
            with self.subTest(file=file.name):
                out = examples / f"imported_{file.name}"
                result = self.trellis("import", examples / file.name, "--out", out)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                plans = [
                    json.loads(self.trellis("validate", path, "--json").stdout)["plan"]
                    for path in (examples / file.name, out)
                ]
                self.assertEqual(plans[0], plans[1])

    def test_a_model_config_holds_from_where_the_result_is(self):
        file = SOURCE / "examples/nxdt/hf_llama3_70B_config.yaml"
        (self.dir / "a/b").mkdir(parents=True)
        for out in ("here.yaml", "a/b/there.yaml"):
            result = self.trellis("import", file, "--out", out)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(self.trellis("validate", out).returncode, 0)

    def test_out_and_back_keeps_every_key(self):
        examples = self.dir / "examples"
        shutil.copytree(SOURCE / "examples/nxdt", examples)
        for file in EXAMPLES:
            with self.subTest(file=file.name):
                before, _ = self.imported(examples / file.name)
                own, back = examples / f"own_{file.name}", examples / f"back_{file.name}"
                self.trellis("import", examples / file.name, "--out", own)
                result = self.trellis("export", own, "--to", "nxdt", "--out", back, "--json")
                self.assertEqual(result.returncode, 0, result.stderr)
                left_out = {
                    (key["key"], key["value"]) for key in json.loads(result.stdout)["left_out"]
                }
                # The repository's examples name a machine and a vocabulary, which NxDT cannot.
                own_keys = {"instance", "model.vocab_size"}
                self.assertLessEqual({key for key, _ in left_out}, own_keys)
                after, _ = self.imported(back)
                pairs = [
                    {(key["key"], key["value"]) for key in document["keys"]}
                    for document in (before, after)
                ]
                self.assertEqual(pairs[0] - left_out, pairs[1])

    def test_keys_of_this_program_are_left_out_and_named(self):
        result = self.trellis(
            "export",
            EXAMPLES[0],
            *("software=nxd", "distributed_strategy.context_parallel_order=contiguous"),
            *("--to", "nxdt", "--json"),
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        left_out = [key["key"] for key in document["left_out"]]
        self.assertIn("software", left_out)
        self.assertIn("distributed_strategy.context_parallel_order", left_out)
        self.assertNotIn("software", document["text"])

    def test_random_keys_are_never_dropped(self):
        source = random.Random(1)
        text = EXAMPLES[0].read_text()
        for round in range(20):
            name = "".join(source.choice("abcdefgh_") for _ in range(12))
            section = source.choice(["trainer", "model", "data", "exp_manager", "precision"])
            changed = text.replace(f"\n{section}:\n", f"\n{section}:\n  {name}: {round}\n", 1)
            self.assertNotEqual(changed, text)
            document, code = self.imported(self.write(changed))
            self.assertEqual(code, 2)
            unknown = [key for key in document["keys"] if key["status"] == "unclassified"]
            self.assertEqual([key["key"] for key in unknown], [f"{section}.{name}"])
            self.assertIn(":", unknown[0]["where"])


class Nemo(ImportCase):
    def rows(self):
        rows = [line.split() for line in NEMO_ROWS.strip().splitlines()]
        self.assertEqual(len(rows), 83)
        return [
            (key, value, "".join(mark).replace("=", key if mark == ["="] else key.split(".")[-1]))
            for key, value, *mark in rows
        ]

    def test_the_83_rows_of_the_table(self):
        rows = self.rows()
        source = self.write(nested({key: value for key, value, _ in rows}))
        document, _ = self.imported(source, "--from", "nemo")
        found = {key["key"]: key for key in document["keys"]}
        self.assertEqual(len(found), 83)
        for key, _, target in rows:
            with self.subTest(key=key):
                row = found[key]
                self.assertNotEqual(row["status"], "unclassified", row["note"])
                if target:
                    self.assertEqual((row["status"], [*row["settings"]][:1]), ("mapped", [target]))
                else:
                    self.assertIn(row["status"], ("default", "ignored", "unsupported"))
                    self.assertTrue(row["note"], "a reason")

    def test_fully_sharded(self):
        settings = {"model.fsdp": "true", "model.fsdp_sharding_strategy": "full"}
        found, _ = self.imported(self.write(nested(settings)), "--from", "nemo")
        rows = {row["key"]: row for row in found["keys"]}
        self.assertEqual(rows["model.fsdp"]["settings"], {"distributed_strategy.fsdp": "true"})
        settings["model.fsdp_sharding_strategy"] = "hybrid"
        found, _ = self.imported(self.write(nested(settings)), "--from", "nemo")
        (row,) = [row for row in found["keys"] if row["key"] == "model.fsdp_sharding_strategy"]
        self.assertEqual(row["status"], "unsupported")

    def test_precision_and_o2_are_one_mode(self):
        for precision, o2, expected in (
            ("bf16-mixed", "true", "mixed_precision"),
            ("bf16-mixed", "false", "autocast"),
            ("bf16", "true", "mixed_precision"),
            ("32", "false", "fp32"),
            ("32-true", "true", "fp32"),
        ):
            source = self.write(
                nested({"trainer.precision": precision, "model.megatron_amp_O2": o2})
            )
            document, _ = self.imported(source, "--from", "nemo")
            self.assertEqual(document["settings"]["precision.type"], expected)
        document, _ = self.imported(
            self.write(nested({"trainer.precision": "16-mixed"})), "--from", "nemo"
        )
        self.assertEqual(document["counts"]["unsupported"], 1)

    def test_an_auxiliary_loss_counts_where_nemo_counts_it(self):
        for balancing, loss, expected in (
            ("aux_loss", "0.01", ("0.01", "true")),
            (None, "0.01", ("0.01", "true")),
            ("none", "0.01", (None, None)),
            ("sinkhorn", "0.01", (None, None)),
            ("aux_loss", "0.0", (None, None)),
        ):
            rows = {"model.num_moe_experts": 8, "model.moe_aux_loss_coeff": loss}
            if balancing:
                rows["model.moe_router_load_balancing_type"] = balancing
            document, _ = self.imported(self.write(nested(rows)), "--from", "nemo")
            settings = document["settings"]
            keys = ("model.moe.router_aux_loss_coef", "model.moe.output_router_logits")
            self.assertEqual(tuple(settings.get(key) for key in keys), expected, balancing)

    def test_torch_dist_is_saved_where_it_can_be(self):
        for kind, experts, expected in (
            ("torch_dist", "null", "torch_dist"),
            ('"torch_dist"', "null", "torch_dist"),
            ("torch_dist", "8", None),
            ("zarr", "null", None),
        ):
            rows = {
                "model.num_moe_experts": experts,
                "model.dist_ckpt_format": kind,
                "model.dist_ckpt_torch_dist_multiproc": 4,
            }
            document, _ = self.imported(self.write(nested(rows)), "--from", "nemo")
            settings = document["settings"]
            self.assertEqual(settings.get("model.dist_ckpt_format"), expected, (kind, experts))
            files = settings.get("model.dist_ckpt_torch_dist_multiproc")
            self.assertEqual(files, "4" if expected else None, (kind, experts))

    def test_stock_files_split_what_they_name(self):
        for prefix, splits, kind in (
            ("[a]", '"900,50,50"', "single"),
            ('"???"', None, "single"),
            (None, None, None),
        ):
            rows = {"model.data.splits_string": '"900,50,50"'}
            if prefix:
                rows["model.data.data_prefix"] = prefix
            document, _ = self.imported(self.write(nested(rows)), "--from", "nemo")
            settings = document["settings"]
            self.assertEqual(settings.get("data.splits_string"), splits, prefix)
            self.assertEqual(settings.get("data.dataloader_type"), kind, prefix)

    def test_adapters_of_fine_tuning(self):
        rows = {
            "model.peft.peft_scheme": '"lora"',
            "model.peft.lora_tuning.adapter_dim": "16",
            "model.peft.lora_tuning.alpha": "${model.peft.lora_tuning.adapter_dim}",
            "model.peft.lora_tuning.adapter_dropout": "0.1",
            "model.peft.lora_tuning.target_modules": "['attention_qkv', mlp_fc2]",
            "model.peft.lora_tuning.variant": '"nemo"',
            "model.peft.lora_tuning.column_init_method": "xavier",
            "model.peft.ia3_tuning.layer_selection": "null",
            "model.data.train_ds.file_names": "[train.jsonl]",
            "model.data.train_ds.prompt_template": '"{input} {output}"',
        }
        document, _ = self.imported(self.write(nested(rows)), "--from", "nemo")
        self.assertEqual(document["counts"]["unclassified"], 0, document)
        peft = "model_alignment_strategy.peft."
        for key, value in (
            ("lora_rank", "16"),
            ("lora_alpha", "16"),
            ("lora_dropout", "0.1"),
            ("target_modules", "[qkv_proj, down_proj]"),
        ):
            self.assertEqual(document["settings"][peft + key], value)
        self.assertEqual(document["settings"]["data.train_dir"], "train.jsonl")
        statuses = {key["key"]: key["status"] for key in document["keys"]}
        self.assertEqual(statuses["model.data.train_ds.prompt_template"], "unsupported")
        rows["model.peft.peft_scheme"] = '"ptuning"'
        document, _ = self.imported(self.write(nested(rows)), "--from", "nemo")
        statuses = {key["key"]: key["status"] for key in document["keys"]}
        self.assertEqual(statuses["model.peft.peft_scheme"], "unsupported")
        self.assertEqual(statuses["model.peft.lora_tuning.alpha"], "default")

    def test_an_empty_precision_is_no_mode(self):
        document, _ = self.imported(
            self.write(nested({"trainer.precision": '""'})), "--from", "nemo"
        )
        self.assertEqual(document["counts"]["unsupported"], 1)

    def test_what_contradicts_is_named_with_both_places(self):
        source = self.write("seed: 1\ntrainer:\n  devices: 1\nmodel:\n  seed: 2\n")
        result = self.trellis("import", source, "--from", "nemo")
        self.fails(result, 2, f"{source}:5: model.seed", f"{source}:1: seed", "remove one")

    def test_a_missing_value_and_unknown_keys(self):
        source = self.write(nested({"model.data.data_prefix": '"???"', "model.hiden_size": 8}))
        document, code = self.imported(source, "--from", "nemo")
        self.assertEqual(code, 2)
        rows = {key["key"]: key for key in document["keys"]}
        self.assertEqual(rows["model.data.data_prefix"]["status"], "unsupported")
        self.assertIn("set it", rows["model.data.data_prefix"]["note"])
        self.assertIn("hidden_size", rows["model.hiden_size"]["note"])


class Hydra(ImportCase):
    def test_files_of_defaults_are_part_of_the_configuration(self):
        self.write(
            "name: adam\nlr: 1e-3\nsched:\n  warmup_steps: ${trainer.warm}\n", "optim/adam.yaml"
        )
        self.write("name: sgd\nlr: 1e-2\n", "optim/sgd.yaml")
        self.write("model: {num_layers: 2, hidden_size: 8}\n", "base.yaml")
        source = self.write(
            "defaults:\n  - base\n  - optim@model.optim: adam\n  - data: text\n  - _self_\n"
            "trainer: {devices: 1, warm: 5}\nmodel: {hidden_size: 16, micro_batch_size: 1,\n"
            "  tensor_model_parallel_size: 1}\n"
        )
        document, _ = self.imported(source)
        self.assertEqual(document["from"], "nemo")
        settings = document["settings"]
        self.assertEqual(settings["model.num_layers"], "2")
        self.assertEqual(settings["model.hidden_size"], "16")
        self.assertEqual(settings["model.optim.lr"], "1e-3")
        self.assertEqual(settings["model.optim.sched.warmup_steps"], "5")
        rows = {row["key"]: row for row in document["keys"]}
        self.assertEqual(rows["model.optim.lr"]["where"], f"{self.dir}/optim/adam.yaml:2")
        self.assertEqual(rows["model.num_layers"]["where"], f"{self.dir}/base.yaml:1")
        self.assertEqual(
            [rows[f"defaults.{i}"]["status"] for i in range(4)],
            ["default", "default", "unsupported", "default"],
        )
        self.assertEqual(rows["defaults.2"]["where"], f"{source}:4")
        self.assertIn(f"there is no {self.dir}/data/text.yaml", rows["defaults.2"]["note"])
        bad = self.write("a: [1\n", "optim/bad.yaml")
        self.fails(self.trellis("import", source, "optim=bad"), 2, f"{bad}:2:1: not valid YAML")
        document, _ = self.imported(source, "optim=sgd")
        self.assertEqual(document["settings"]["model.optim.name"], "sgd")

    def test_a_composed_file_of_nxdt_has_the_plan_of_the_whole(self):
        whole = yaml.safe_load(EXAMPLES[0].read_text())
        folder = self.dir / "parts"
        folder.mkdir()
        for section in ("data", "trainer"):
            (folder / section).mkdir()
            text = yaml.safe_dump(whole.pop(section))
            (folder / section / "mine.yaml").write_text(text)
        whole["defaults"] = [{"data": "mine"}, {"trainer": "mine"}, "_self_"]
        (folder / "config.yaml").write_text(yaml.safe_dump(whole))
        shutil.copytree(EXAMPLES[0].parent / "model_configs", folder / "model_configs")
        result = self.trellis("import", folder / "config.yaml", "--out", folder / "own.yaml")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        plans = [
            json.loads(self.trellis("validate", path, "--json").stdout)["plan"]
            for path in (EXAMPLES[0], folder / "own.yaml")
        ]
        for plan in plans:
            plan.pop("resolved_yaml")
        self.assertEqual(plans[0], plans[1])


class BadInput(ImportCase):
    def test_each_is_named_with_its_place(self):
        for name, text, words in (
            ("circle", "a: ${b}\nb: ${a}\n", ("circle.yaml:2:b", "leads back to itself")),
            ("nowhere", "name: ${model.nothing}\n", ("nowhere.yaml:1", "model.nothing")),
            ("environment", "name: ${oc.env:HOME}\n", ("environment.yaml:1", "oc.env")),
            ("function", "a: 1\nname: x_${now:%Y}\n", ("function.yaml:2:name", "'now'")),
            ("twice", "name: a\nname: b\n", ("twice.yaml:2", "name")),
            ("no_yaml", "a: [1, 2\n", ("no_yaml.yaml",)),
        ):
            with self.subTest(name=name):
                source = self.write(text, f"{name}.yaml")
                result = self.trellis("import", source, "--from", "nemo")
                self.fails(result, 2, *words)

    def test_a_bomb_is_refused(self):
        lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
        source = self.write("\n".join(lines) + "\n")
        for program in ("nxdt", "nemo"):
            result = self.trellis("import", source, "--from", program)
            self.fails(result, 2, f"{source}:1: ", "more than a million values")

    def test_old_and_new_names_of_training_arguments(self):
        config = SOURCE / "examples/nxdt/model_configs/llama3_8B/config.json"
        args = self.write(
            '{"max_steps": 5,\n"evaluation_strategy": "no",\n"eval_strategy": "steps"}'
        )
        result = self.trellis("import", config, "--training-args", args)
        self.fails(
            *(result, 2, f"{args}:2: training_args.evaluation_strategy"),
            *(f"{args}:3: training_args.eval_strategy", "remove one of the two"),
        )

    def test_what_needs_a_look_is_shown_with_its_line(self):
        script = self.write(
            "pretrain_gpt.py --lr 1 \\\n  --num-layers $(nproc) \\\n --num-layer 2\n"
        )
        result = self.trellis("import", script, "--from", "megatron")
        self.assertRegex(
            result.stdout, rf"--num-layers .*{script}:2: .*\(\$\(nproc\)\).*not executed"
        )
        self.assertRegex(result.stdout, rf"--num-layer .*{script}:3: .*did you mean --num-layers")

    def test_options_that_do_not_fit(self):
        file = EXAMPLES[0]
        self.fails(self.trellis("import", file, "--training-args", file), 2, "--from hf")
        out = self.write("mine\n", "out.yaml")
        self.fails(self.trellis("import", file, "--out", out), 2, str(out), "--force")
        self.assertEqual(out.read_text(), "mine\n")
        self.assertEqual(self.trellis("import", file, "--out", out, "--force").returncode, 0)
        self.assertIn("# Imported from", out.read_text())

    def test_a_place_that_cannot_be_written_is_refused_before_anything_else(self):
        file = self.write("a file, no folder\n", "taken")
        for verb in (("import", EXAMPLES[0]), ("export", EXAMPLES[0], "--to", "nxdt")):
            self.fails(self.trellis(*verb, "--out", file / "x.yaml"), 2, "--out")
            out = self.dir / verb[0] / "new" / "x.yaml"
            result = self.trellis(*verb, "--out", out)
            self.assertTrue(out.exists(), result.stderr)

    def test_no_such_file(self):
        missing = pathlib.Path("/nowhere/x.yaml")
        self.fails(self.trellis("import", missing), 2, str(missing))
        self.fails(self.trellis("import", missing, "--from", "nemo"), 2, str(missing))


if __name__ == "__main__":
    unittest.main()
