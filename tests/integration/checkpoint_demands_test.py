#!/usr/bin/env python3
"""What users of comparable trainers asked for, as one runs it: a checkpoint of a layout opens in
another one with its optimizer, a cut run equals the whole one, checkpoints are in S3 alone."""

import json
import logging
import os
import unittest

import cli_case
from cli_case import QUICKSTART, SOURCE

SMALL = [
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_attention_heads=4",
    "model.num_kv_heads=2",
    "model.encoder_seq_length=16",
    "data.global_batch_size=12",
    "data.micro_batch_size=1",
    "precision.type=fp64",
    "distributed_strategy.sequence_parallel=false",
    "exp_manager.create_checkpoint_callback=true",
    "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: -1, "
    "save_last: false, every_n_train_steps: 5, filename: 'm--{step}'}",
    "--device",
    "cpu",
]
TINY = ["model.num_layers=2", "data.num_workers=2"]


def layout(devices, tp=1, pp=1, ep=1, experts=0):
    words = [
        f"trainer.devices={devices}",
        f"distributed_strategy.tensor_model_parallel_size={tp}",
        f"distributed_strategy.pipeline_model_parallel_size={pp}",
        "model.num_layers=4",
        # The vocabulary is padded alike.
        f"model.make_vocab_size_divisible_by={16 // tp}",
    ]
    if experts:
        words += [
            f"distributed_strategy.expert_model_parallel_size={ep}",
            f"model.moe={{num_experts: {experts}, top_k: 2, dropless: true}}",
        ]
    return words


# Those that were named; 30 random pairs: trainer/checkpoint/training:Reshard.
PAIRS = {
    "DP 2 to 3": (layout(2), layout(3)),
    "PP 4 to EP 4": (layout(4, pp=4, experts=4), layout(4, ep=4, experts=4)),
    "six experts, three of a rank, to two": (
        layout(4, ep=2, experts=6),
        layout(3, ep=3, experts=6),
    ),
    "six rows of a router on four ranks to TP 2": (
        layout(4, experts=6),
        layout(2, tp=2, experts=6),
    ),
}

# Next to the weights: of a tokenizer whose special tokens are none of the usual ones.
TOKENIZER = {
    "tokenizer_config.json": '{"bos_token": "<b>", "eos_token": "<e>", "model_max_length": 16}',
    "special_tokens_map.json": '{"bos_token": "<b>", "eos_token": "<e>"}',
    "added_tokens.json": '{"<b>": 7, "<e>": 8, "<pad>": 256}',
    "tokenizer.json": '{"version": "1.0", "added_tokens": [{"id": 7, "content": "<b>"}]}',
}


class Case(cli_case.CheckedCase):
    def run_of(self, name, *args, returncode=0):
        """The folder of its checkpoints."""
        result = self.trellis(
            *("train", QUICKSTART, *SMALL, *args),
            f"exp_manager.explicit_log_dir={self.dir / name}",
            returncode=returncode,
        )
        return result if returncode else self.dir / name / "checkpoints"


class Layouts(Case):
    def test_saved_at_5_under_a_and_trained_to_10_under_b(self):
        for name, (a, b) in PAIRS.items():
            with self.subTest(name):
                path = name.replace(" ", "_")
                whole = self.run_of(f"{path}_a", "trainer.max_steps=10", *a)
                resume = f"exp_manager.resume_from_checkpoint={whole}/m--step=5.ckpt"
                other = self.run_of(f"{path}_b", "trainer.max_steps=10", *b, resume)
                compared = self.trellis(
                    *("checkpoint", "diff", "--json", "--tolerance", "1e-10"),
                    *(each / "m--step=10.ckpt" for each in (whole, other)),
                )
                compared = json.loads(compared.stdout)
                self.assertEqual(compared["differences"], [])
                # Weights and both moments.
                shown = self.trellis("checkpoint", "inspect", whole / "m--step=10.ckpt", "--json")
                keys = [row["key"] for row in json.loads(shown.stdout)["tensors"]]
                weights = [key for key in keys if not key.startswith("optimizer.")]
                self.assertEqual(len(keys), 3 * len(weights))
                self.assertEqual(compared["tensors"], len(keys))

    def test_missing_moments_are_an_error(self):
        saved = self.run_of(
            *("weights", *layout(2), "trainer.max_steps=5"),
            "exp_manager.checkpoint_callback_params.save_weights_only=true",
        )
        resume = f"exp_manager.resume_from_checkpoint={saved}/m--step=5.ckpt"
        result = self.run_of("more", *layout(2), "trainer.max_steps=6", resume, returncode=2)
        self.assertIn("has no optimizer.state.exp_avg.", result.stderr)


class HuggingFace(Case):
    """With a training in between, of four families: integration/hugging_face. Merged adapters of
    TP 2 × PP 2: integration/adapters:SaveModes."""

    def test_a_mixture_through_another_layout_and_back(self):
        import torch
        import transformers

        torch.manual_seed(3)
        sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=257)
        heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)
        ids = dict(bos_token_id=7, eos_token_id=[8, 9], pad_token_id=256)
        rope = {"rope_type": "default", "rope_theta": 10000.0}  # as the quickstart's
        config = transformers.MixtralConfig(
            num_local_experts=4, rope_parameters=rope, **sizes, **heads, **ids
        )
        hub, back = self.dir / "hub", self.dir / "back"
        model = transformers.MixtralForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(hub, max_shard_size=30_000)
        for name, text in TOKENIZER.items():
            (hub / name).write_text(text)
        words = [each for each in SMALL if each not in ("--device", "cpu")]
        self.trellis(
            *("checkpoint", "import-hf", hub, *words, *layout(8, 2, 2, 2, experts=4)),
            *("model.num_layers=2", "precision.type=mixed_precision"),
            *("--config", QUICKSTART, "--out", "native.ckpt"),
        )
        self.assertEqual(len(list((self.dir / "native.ckpt/model").iterdir())), 8)
        export = ["checkpoint", "export-hf", "native.ckpt", "--like", hub, "--verify"]
        said = self.trellis(*export, "--out", back)
        self.assertIn("every byte is that of the checkpoint", said.stdout)
        files = {path.name: path.read_bytes() for path in hub.iterdir()}
        self.assertGreater(len(files), 8)
        self.assertEqual(files, {path.name: path.read_bytes() for path in back.iterdir()})
        said = json.loads(self.trellis(*export, "--out", "c", "--json").stdout)["verified"]
        elements = sum(each.numel() for each in model.state_dict().values())
        self.assertEqual((said["bytes"], said["differences"]), (2 * elements, []))

    def test_differences_are_ranked_by_their_l2_norm(self):
        """And so shown by `diff`; the norms are torch's."""
        import torch

        torch.manual_seed(4)
        ours = {f"layer.{i}.weight": torch.randn(7, 5) for i in range(6)}
        theirs = {key: value.clone() for key, value in ours.items()}
        norms = {}
        for key, scale in (
            ("layer.4.weight", 1e-3),
            ("layer.1.weight", 3.0),
            ("layer.3.weight", 1),
        ):
            theirs[key] += scale * torch.randn(7, 5)
            norms[key] = (ours[key].double() - theirs[key].double()).norm().item()
        for name, tensors in (("a", ours), ("b", theirs)):
            (self.dir / name).mkdir()
            torch.save(tensors, self.dir / name / "checkpoint.pt")
        shown = self.trellis("checkpoint", "diff", "a", "b", "--top", 2, returncode=5).stdout
        rows = [line.split()[0] for line in shown.splitlines() if "layer." in line]
        self.assertEqual(rows, ["layer.1.weight", "layer.3.weight"])
        self.assertIn("1 more", shown)
        found = self.trellis("checkpoint", "diff", "a", "b", "--json", returncode=5).stdout
        found = {row["key"]: row["l2"] for row in json.loads(found)["differences"]}
        self.assertEqual(found.keys(), norms.keys())
        for key, norm in norms.items():
            self.assertAlmostEqual(found[key], norm, delta=1e-12 * norm)


class CutRuns(Case):
    def test_forty_steps_cut_at_13_and_27(self):
        """Epochs of three steps, dropout, with and without threads that read ahead."""
        text = self.dir / "text.txt"
        text.write_text("".join(chr(97 + i * i % 23) for i in range(3 * 12 * 17 + 40)))
        words = [*SMALL[:7], *TINY, "model.hidden_dropout=0.1", f"data.train_dir={text}"]
        hashes = []
        for workers in (0, 4):
            found = self.trellis(
                *("resume-check", QUICKSTART, *words, *layout(4, tp=2)[:3], "--json"),
                *("--steps", 40, "--cut", "13,27", f"data.num_workers={workers}"),
            )
            found = json.loads(found.stdout)
            self.assertTrue(found["equal"] and found["bit_by_bit"])
            self.assertEqual(len(found["hashes"]), 41)
            hashes.append(found["hashes"])
        self.assertEqual(*hashes)


class Storage(Case):
    """Its counterpart with failing requests and a kill: integration/s3_training."""

    def test_a_run_and_its_resume_need_nothing_of_the_local_disk(self):
        import boto3
        import moto.server

        os.environ.update(
            AWS_ACCESS_KEY_ID="test",
            AWS_SECRET_ACCESS_KEY="test",
            AWS_EC2_METADATA_DISABLED="true",
            AWS_DEFAULT_REGION="us-east-1",
        )
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        self.addCleanup(server.stop)
        port = server.get_host_and_port()[1]
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket="bucket")
        place = f"s3://bucket/run?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        saves = [
            "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1, "
            f"every_n_train_steps: 2, filename: 'm--{{step}}', dirpath: '{place}'}}",
            "exp_manager.async_checkpointing=true",
            "exp_manager.resume_if_exists=true",
            "exp_manager.resume_ignore_no_checkpoint=true",
            *layout(2)[:3],
            *TINY,
        ]
        losses = {}
        for host, steps in (("whole", 6), ("first", 4), ("second", 6)):
            # A folder per host, which the next one does not have.
            args = saves if host != "whole" else [each.replace("/run?", "/w?") for each in saves]
            self.run_of(host, *args, f"trainer.max_steps={steps}")
            lines = (self.dir / host / "metrics.jsonl").read_text().splitlines()
            losses[host] = {row["step"]: row["loss"] for row in map(json.loads, lines)}
            self.assertEqual(list(self.dir.rglob("*.pt")), [])
        self.assertEqual(list(losses["second"]), [5, 6])
        self.assertEqual({**losses["first"], **losses["second"]}, losses["whole"])

    def test_a_step_waits_for_an_asynchronous_save_2_percent_at_most(self):
        result = self.trellis(
            *("simulate", SOURCE / "examples/llama3_8b_trn1.yaml", "--json"),
            *("--checkpoint-every", 100, "--checkpoint-storage", "s3"),
            "exp_manager.async_checkpointing=true",
        )
        waits = json.loads(result.stdout)["checkpoints"]["waits"]
        self.assertLessEqual(waits["share_of_step"], 0.02)


if __name__ == "__main__":
    unittest.main()
