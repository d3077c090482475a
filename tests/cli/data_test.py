#!/usr/bin/env python3
"""`trellis data build` and `trellis data inspect` as their users meet them. Environment: TRELLIS,
the program."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TRELLIS = os.environ["TRELLIS"]
TEXTS = [
    "First document.\nTwo lines.",
    "",
    "Zweites Dokument: äöü 🌱",
    "def f(x):\n    return x + 1\n",
] * 25


class Data(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)
        self.jsonl = self.dir / "corpus.jsonl"
        self.jsonl.write_text(
            "".join(json.dumps({"content": text, "id": i}) + "\n" for i, text in enumerate(TEXTS))
        )

    def trellis(self, *args):
        return subprocess.run(
            [TRELLIS, "data", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=self.dir,
            timeout=120,
        )

    def fails(self, result, *texts):
        self.assertEqual(result.returncode, 2, result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr)

    def tokenizer(self, eos=True):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(
            TEXTS,
            trainers.BpeTrainer(
                vocab_size=400,
                special_tokens=["<|end|>"],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            ),
        )
        directory = self.dir / "tokenizer"
        directory.mkdir(exist_ok=True)
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(
            json.dumps({"eos_token": "<|end|>"} if eos else {})
        )
        return tokenizer

    def test_build_equals_the_tokenizers_package_whatever_the_workers(self):
        tokenizer = self.tokenizer()
        expected = [
            tokenizer.encode(text).ids + [tokenizer.token_to_id("<|end|>")]
            for text in TEXTS
            if text
        ]
        files = set()
        for workers in (1, 4):
            result = self.trellis(
                "build",
                self.jsonl,
                "--json-key",
                "content",
                "--output",
                f"out{workers}",
                "--tokenizer",
                "huggingface",
                "--type",
                "tokenizer",
                "--workers",
                workers,
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("75 documents", result.stdout)
            self.assertIn("25 documents left out", result.stdout)
            np.testing.assert_array_equal(
                np.fromfile(self.dir / f"out{workers}.bin", np.uint16), np.concatenate(expected)
            )
            files.add(
                (
                    (self.dir / f"out{workers}.bin").read_bytes(),
                    (self.dir / f"out{workers}.idx").read_bytes(),
                )
            )
        self.assertEqual(len(files), 1)
        facts = json.loads(
            self.trellis(
                "inspect",
                "out1",
                "--json",
                "--rows",
                1,
                "--tokenizer",
                "huggingface",
                "--type",
                "tokenizer",
            ).stdout
        )
        self.assertEqual(
            (facts["documents"], facts["tokens"], facts["type"]),
            (75, sum(map(len, expected)), "uint16"),
        )
        self.assertEqual(facts["excerpts"][0]["text"], TEXTS[0].replace("\n", "\\n") + "<|end|>")

    def test_bad_input_is_named_and_leaves_no_file(self):
        self.fails(
            self.trellis("build", "nowhere.txt", "--output", "out"),
            "input: nowhere.txt: cannot read: there is no such file or directory",
        )
        self.fails(
            self.trellis("build", self.jsonl, "--output", "out"),
            'corpus.jsonl:1: there is no member "text"; the line has "content", "id"',
        )
        (self.dir / "empty.txt").write_text("")
        self.fails(
            self.trellis("build", "empty.txt", "--output", "out"),
            "no document with text in empty.txt",
        )
        self.tokenizer(eos=False)
        ask = [
            "build",
            self.jsonl,
            "--json-key",
            "content",
            "--output",
            "out",
            "--tokenizer",
            "huggingface",
            "--type",
            "tokenizer",
        ]
        self.fails(
            self.trellis(*ask), "the tokenizer names no end-of-sequence token", "--no-append-eod"
        )
        self.fails(
            self.trellis("build", self.jsonl, "--json-key", "content", "--output", "/dev/null/out"),
            "/dev/null/out.bin",
        )
        self.assertEqual([path.name for path in self.dir.iterdir() if "out" in path.name], [])
        self.assertEqual(self.trellis(*ask, "--no-append-eod").returncode, 0)
        self.fails(self.trellis("inspect", "nowhere"), "nowhere.idx: there is no such file")
        idx = self.dir / "out.idx"
        idx.write_bytes(idx.read_bytes()[:-4])
        self.fails(
            self.trellis("inspect", "out"),
            "out.idx: offset 18: the header states 75 sequences and 76 document entries",
            "bytes, got a file of",
        )

    def test_inspect_shows_what_a_step_of_a_configuration_reads(self):
        (self.dir / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
        config = pathlib.Path(__file__).resolve().parents[2] / "examples/quickstart.yaml"
        overrides = [
            config,
            "data.train_dir=text.txt",
            "model.encoder_seq_length=64",
            "data.seq_length=64",
            "trainer.max_steps=4",
        ]
        result = self.trellis("inspect", *overrides, "--step", 3, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        batch = json.loads(result.stdout)
        self.assertEqual(
            (batch["schema"], batch["step"], len(batch["rows"])), ("trellis.data_batch/1", 3, 2)
        )
        for row in batch["rows"]:
            self.assertEqual(row["text"], bytes(row["input_ids"]).decode())
            self.assertEqual(row["labels_with_loss"], 64)
            self.assertIn(row["text"], "The quick brown fox jumps over the lazy dog. " * 10)
        self.fails(
            self.trellis("inspect", *overrides, "--rank", 1000), "--rank: expected 0 …", "got 1000"
        )


if __name__ == "__main__":
    unittest.main()
