#!/usr/bin/env python3
"""From files to losses through the YAML: each kind of data trains alike on one rank and on four,
and a resumed run reads on where it stopped."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TRELLIS = pathlib.Path(os.environ.get("TRELLIS", SOURCE / "build/release/bin/trellis"))
SEQUENCE, BATCH, STEPS = 16, 8, 5
MODEL = [
    "trainer.max_steps=%d" % STEPS,
    "exp_manager.use_datetime_version=false",
    "precision.type=fp32",
    f"model.encoder_seq_length={SEQUENCE}",
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=48",
    "model.num_attention_heads=4",
    f"data.global_batch_size={BATCH}",
    "model.vocab_size=null",
    "data.train_dir=null",
]
LAYOUTS = {"one rank": (1, 1, 1), "TP 2 × DP 2": (2, 1, 4), "PP 2 × DP 2": (1, 2, 4)}
WORDS = (
    "the quick brown fox jumps over the lazy dog while seven wizards box five jugs of liquor"
).split()


def documents(seed, count):
    """Texts of random length."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(2, 40))) for _ in range(count)]


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def trellis(self, *args):
        result = subprocess.run(
            [TRELLIS, *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=120
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return result.stdout

    def config(self, data, layout="one rank"):
        tp, pp, devices = LAYOUTS[layout]
        return [
            SOURCE / "examples/verify_llama.yaml",
            *MODEL,
            *data,
            f"trainer.devices={devices}",
            f"distributed_strategy.tensor_model_parallel_size={tp}",
            f"distributed_strategy.pipeline_model_parallel_size={pp}",
            f"distributed_strategy.sequence_parallel={str(tp > 1).lower()}",
        ]

    def train(self, data, layout):
        """The rows of metrics.jsonl."""
        folder = self.dir / layout.replace(" ", "_")
        self.trellis(
            "train",
            *self.config(data, layout),
            "--device",
            "cpu",
            f"exp_manager.explicit_log_dir={folder}",
        )
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def expect_equal_losses(self, data, validates=False):
        expected = None
        for layout in LAYOUTS:
            steps = self.train(data, layout)
            self.assertEqual(
                [step["consumed_samples"] for step in steps],
                [BATCH * (i + 1) for i in range(STEPS)],
            )
            losses = [
                [
                    step["loss"],
                    step["grad_norm"],
                    *([step["val_loss"]] if "val_loss" in step else []),
                ]
                for step in steps
            ]
            self.assertEqual(any("val_loss" in step for step in steps), validates)
            expected = expected or losses
            for step, (got, want) in enumerate(zip(losses, expected, strict=True)):
                np.testing.assert_allclose(
                    got, want, rtol=2e-5, err_msg=f"{layout}, step {step + 1}"
                )
        self.assertLess(expected[-1][0], expected[0][0], "the loss falls")

    def batch(self, data, step, layout="one rank", *options):
        """The rows of a global batch, by their places."""
        rows = {}
        for rank in range(2 if "DP 2" in layout else 1):
            document = json.loads(
                self.trellis(
                    "data",
                    "inspect",
                    *self.config(data, layout),
                    "--json",
                    "--rows",
                    1000,
                    "--step",
                    step,
                    "--rank",
                    rank,
                    *options,
                )
            )
            for row in document["rows"]:
                rows[row["place"]] = row["input_ids"]
        return [rows[place] for place in sorted(rows)]

    def expect_resume(self, data):
        """A run that continues after `consumed` samples reads what an uninterrupted one reads
        there; its global batch may be another."""
        whole = [self.batch(data, step) for step in range(4)]
        self.assertEqual(
            self.batch(data, 2, "TP 2 × DP 2"),
            whole[2],
            "the samples of a step do not depend on the layout",
        )
        self.assertEqual(
            self.batch(data, 2, "TP 2 × DP 2", "--consumed-samples", 2 * BATCH), whole[2]
        )
        self.assertEqual(self.batch(data, 1, "one rank", "--consumed-samples", 3 * BATCH), whole[3])
        half = [
            *data,
            f"data.global_batch_size={BATCH // 2}",
            f"trainer.max_steps={2 * STEPS}",
        ]  # as many samples in all
        self.assertEqual(
            self.batch(half, 4, "TP 2 × DP 2", "--consumed-samples", 2 * BATCH),
            whole[2][: BATCH // 2],
        )
        self.assertEqual(
            len({tuple(row) for step in whole for row in step}), 4 * BATCH, "samples differ"
        )


class HuggingFace(Case):
    """What datasets' save_to_disk writes: Arrow files, here two, with rows padded at the right."""

    def save(self, name, seed, rows):
        import datasets

        random = np.random.default_rng(seed)
        lengths = [SEQUENCE if i % 3 else int(random.integers(4, SEQUENCE)) for i in range(rows)]
        ids = [
            [int(i) for i in np.cumsum(random.integers(0, 3, n)) % 97] + [0] * (SEQUENCE - n)
            for n in lengths
        ]
        table = {
            "input_ids": ids,
            "labels": ids,
            "attention_mask": [[1] * n + [0] * (SEQUENCE - n) for n in lengths],
        }
        datasets.Dataset.from_dict(table).save_to_disk(str(self.dir / name), num_shards=2)
        return ids

    def test_trains_alike_and_resumes(self):
        import datasets

        datasets.disable_progress_bars()
        rows = self.save("train", 1, 5 * BATCH + 3)
        self.save("val", 2, BATCH + 3)
        data = [
            "data.train_dir=train",
            "data.tokenizer=null",
            "model.vocab_size=98",
            "data.val_dir=val",
            "trainer.val_check_interval=2",
        ]
        self.expect_equal_losses(data, validates=True)
        self.expect_resume(data)
        self.assertEqual(self.batch(data, 3), rows[3 * BATCH : 4 * BATCH])


class Megatron(Case):
    """`trellis data build`, blends and splits; index maps are made once and read again."""

    VOCABULARY = ["model.vocab_size=264"]  # of every TP: padding would make another model

    def setUp(self):
        super().setUp()
        for name, seed in (("a", 3), ("b", 4)):
            (self.dir / f"{name}.jsonl").write_text(
                "".join(json.dumps({"text": text}) + "\n" for text in documents(seed, 60))
            )
            self.trellis("data", "build", f"{name}.jsonl", "--output", name, "--workers", 2)

    def test_a_blend_with_splits_trains_alike_and_resumes(self):
        data = [
            *self.VOCABULARY,
            "data.data_prefix=[0.3, a, 0.7, b]",
            "data.splits_string='80,10,10'",
            "data.dataloader_type=single",
            "data.index_mapping_dir=maps",
            "trainer.val_check_interval=2",
            "trainer.limit_val_batches=1",
        ]
        self.expect_equal_losses(data, validates=True)
        maps = {path.name: path.stat().st_mtime_ns for path in (self.dir / "maps").iterdir()}
        self.assertEqual(sorted({name.split("_")[0] for name in maps}), ["a", "b"])
        self.expect_resume([*data, "data.eod_mask_loss=true"])
        text = " ".join(documents(3, 60) + documents(4, 60))
        for row in self.batch(data, 0):
            for part in bytes(id if id < 256 else 0 for id in row).split(b"\0"):
                self.assertIn(part.decode(), text)

    def test_data_by_split_trains_alike(self):
        data = [
            *self.VOCABULARY,
            "data.data_prefix={train: [a], validation: [b], test: [b]}",
            "data.dataloader_type=single",
            "trainer.val_check_interval=2",
            "trainer.limit_val_batches=1",
        ]
        self.expect_equal_losses(data, validates=True)


class JsonLines(Case):
    """Text with a tokenizer whose files state the size of the vocabulary."""

    def setUp(self):
        super().setUp()
        import sentencepiece

        texts = documents(5, 120)
        (self.dir / "texts").mkdir()
        for name, part in (("one", texts[:70]), ("two", texts[70:])):
            (self.dir / "texts" / f"{name}.jsonl").write_text(
                "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(part))
            )
        self.pieces = sentencepiece.SentencePieceProcessor
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(self.dir / "tokenizer"),
            vocab_size=90,
            model_type="bpe",
            minloglevel=2,
        )

    def test_trains_alike_and_resumes(self):
        data = [
            "data.train_dir=texts",
            "data.tokenizer={library: sentencepiece, model: tokenizer.model}",
            "model.make_vocab_size_divisible_by=1",
        ]
        self.expect_equal_losses(data)
        self.expect_resume(data)
        plan = json.loads(self.trellis("validate", *self.config(data), "--json"))["plan"]
        self.assertIn("vocab_size: 90", plan["resolved_yaml"])
        pieces = self.pieces(model_file=str(self.dir / "tokenizer.model"))
        stream = np.concatenate(
            [[*pieces.encode(text), pieces.eos_id()] for text in documents(5, 120)]
        )
        samples = {
            tuple(stream[i : i + SEQUENCE]) for i in range(0, len(stream) - SEQUENCE, SEQUENCE + 1)
        }
        self.assertLessEqual({tuple(row) for row in self.batch(data, 0)}, samples)


class PreTokenised(Case):
    """`trellis data build --format arrow`: what `datasets` reads of it, and what training does."""

    EOS = 256  # of the byte-level tokenizer
    ARROW = ["data.tokenizer=null", "model.vocab_size=264"]

    def load(self, name):
        import datasets

        rows = datasets.load_from_disk(str(self.dir / name))
        self.assertEqual(rows.features["input_ids"].feature.dtype, "int32")
        return rows.to_dict()

    def build(self, *args, output, length=SEQUENCE):
        return self.trellis(
            *("data", "build", *args, "--format", "arrow", "--sequence-length", length),
            *("--output", output),
        )

    def test_text_is_cut_into_rows_of_which_every_token_is_a_label(self):
        texts = documents(7, 1200)
        (self.dir / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        said = [self.build("text.jsonl", "--workers", w, output=f"rows{w}") for w in (1, 3)]
        stream = [token for text in texts for token in (*text.encode(), self.EOS)]
        count = len(stream) // SEQUENCE
        rows = [stream[i * SEQUENCE : (i + 1) * SEQUENCE] for i in range(count)]
        expected = {
            "input_ids": rows,
            "attention_mask": [[1] * SEQUENCE] * count,
            "labels": rows,
        }
        self.assertEqual(self.load("rows1"), expected)
        self.assertIn(f"{count} rows of {SEQUENCE} tokens from 1200 documents", said[0])
        for file in (self.dir / "rows1").iterdir():
            self.assertEqual(file.read_bytes(), (self.dir / "rows3" / file.name).read_bytes())
        self.expect_equal_losses(["data.train_dir=rows1", *self.ARROW])

    def test_records_train_as_the_file_they_came_from(self):
        random = np.random.default_rng(9)
        texts = [
            tuple("".join(random.choice([*"abcä"], random.integers(1, 7))) for _ in range(2))
            for _ in range(6 * BATCH)
        ]
        (self.dir / "records.jsonl").write_text(
            "".join(json.dumps(dict(zip(("input", "output"), t))) + "\n" for t in texts)
        )
        self.build("records.jsonl", "--records", output="rows")
        self.build("records.jsonl", "--records", "--truncation-mode", "keep_end", output="rows")
        rows = self.load("rows")
        for i, (prompt, answer) in enumerate(texts):
            prompt, answer = list(prompt.encode()), [*answer.encode(), self.EOS]
            cut = max(len(prompt) + len(answer) - SEQUENCE, 0)
            ids, labels = (prompt + answer)[cut:], ([-100] * len(prompt) + answer)[cut:]
            padding = SEQUENCE - len(ids)
            self.assertEqual(rows["input_ids"][i], ids + [self.EOS] * padding)
            self.assertEqual(rows["attention_mask"][i], [1] * len(ids) + [0] * padding)
            self.assertEqual(rows["labels"][i], labels + [-100] * padding)
        sft = [
            *("data.train_dir=records.jsonl", "data.shuffle=false", "model.vocab_size=264"),
            "model_alignment_strategy={sft: {truncation_mode: keep_end}}",
        ]
        losses = {}
        for name, data in (("records", sft), ("rows", ["data.train_dir=rows", *self.ARROW])):
            layout = "one rank" if name == "records" else "TP 2 × DP 2"
            losses[name] = [row["loss"] for row in self.train(data, layout)]
        np.testing.assert_allclose(losses["rows"], losses["records"], rtol=2e-5)

    def test_mistakes_leave_what_was_there(self):
        def fails(*args, texts):
            result = subprocess.run(
                [TRELLIS, "data", "build", *map(str, args)],
                capture_output=True,
                text=True,
                cwd=self.dir,
                timeout=60,
            )
            self.assertEqual(result.returncode, 2, result.stdout)
            for text in texts:
                self.assertIn(text, result.stderr)

        good = self.dir / "good.jsonl"
        good.write_text(json.dumps({"input": "a", "output": "b"}) + "\n")
        self.build(good, "--records", output="rows")
        before = self.load("rows")
        arrow = ["--format", "arrow", "--sequence-length", SEQUENCE, "--output"]
        bad = self.dir / "bad.jsonl"
        bad.write_text(good.read_text() + json.dumps({"input": "a"}) + "\n")
        fails(bad, "--records", *arrow, "rows", texts=["bad.jsonl:2", "`output`"])
        self.assertEqual(self.load("rows"), before)
        fails(bad, "--records", *arrow, "none", texts=["bad.jsonl:2"])
        self.assertFalse((self.dir / "none").exists())
        (self.dir / "short.txt").write_text("x")
        fails("short.txt", *arrow, "none", texts=["2 tokens", "one row of --sequence-length"])
        fails(good, *arrow, ".", texts=["the folder holds", "name another folder"])
        fails("rows", "--output", "x", texts=["input: rows: this is a data set of tokens"])
        result = subprocess.run(
            list(map(str, [TRELLIS, "train", *self.config(["data.train_dir=rows"])])),
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=60,
        )
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("data.train_dir: rows: this is a data set of tokens", result.stderr)
        fails(good, "--format", "arrow", "--output", "x", texts=["--sequence-length: missing"])
        fails(good, "--records", "--output", "x", texts=["--records", "add --format arrow"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
