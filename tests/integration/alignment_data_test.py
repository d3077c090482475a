#!/usr/bin/env python3
"""Records of fine-tuning through the YAML: `data inspect` shows what a step reads and what it
learns; mistakes name file and record."""

import json
import os
import resource
import struct
import subprocess
import unittest

import pyarrow
import pyarrow.parquet
from cli_case import SOURCE, TRELLIS, Case
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SHARED = [
    SOURCE / "examples/verify_llama.yaml",
    "data.global_batch_size=4",
    "model.encoder_seq_length=48",
    "model.vocab_size=null",
]


class Inspect(Case):
    def records(self, rows, name="data.jsonl"):
        (self.dir / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"data.train_dir={self.dir / name}"

    def chat_tokenizer(self, template):
        alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        inner = Tokenizer(models.BPE(alphabet, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")
        tokenizer.chat_template = template
        tokenizer.save_pretrained(self.dir / "tokenizer")
        return f"data.tokenizer={{library: huggingface, type: {self.dir / 'tokenizer'}}}"

    def inspect(self, strategy, *more):
        """The document, after what is for people has been printed too."""
        args = ["data", "inspect", *SHARED, f"model_alignment_strategy={strategy}", *more]
        text = self.trellis(*args)
        self.assertEqual(text.returncode, 0, text.stderr)
        return json.loads(self.trellis(*args, "--json").stdout), text.stdout

    def test_an_answer_is_learned_and_its_prompt_is_read(self):
        rows = [{"input": f"Question {i}?", "output": f"Answer {i}."} for i in range(4)]
        document, text = self.inspect("{sft: {}}", self.records(rows), "data.shuffle=false")
        for i, row in enumerate(document["rows"]):
            learned = [part["text"] for part in row["parts"] if part["learned"]]
            self.assertEqual(row["labels_with_loss"], len("Answer 0.") + 1)
            self.assertEqual([part[:9] for part in learned], [f"Answer {2 * i}."])
        self.assertIn('learns 10 tokens from 11: "Answer 0.', text)

    def test_packed_records_are_documents_and_padding_is_counted(self):
        rows = [{"input": "a" * n, "output": "b" * n} for n in (5, 6, 7, 8, 9, 10, 11, 12)]
        document, text = self.inspect(
            "{sft: {packing: true}}",
            self.records(rows),
            "data.global_batch_size=2",
            "trainer.devices=4",
            "data.shuffle=false",
        )
        first = document["rows"][0]
        self.assertEqual(first["documents"], [1] * 11 + [2] * 13 + [3] * 15 + [0] * 9)
        self.assertEqual(first["position_ids"][:24], [*range(11), *range(13)])
        self.assertIn("3 documents, 9 tokens of padding", text)
        self.assertIn("8 records packed into 4 sequences of 48", document["description"])

    def test_chats_and_pairs(self):
        tokenizer = self.chat_tokenizer(TEMPLATE)
        user = {"role": "user", "content": "Hi"}
        good, bad = ({"role": "assistant", "content": text} for text in ("Yes", "No!"))
        rows = [{"messages": [user, good]}] * 4
        document, _ = self.inspect("{sft: {}}", self.records(rows), tokenizer)
        learned = [part["text"] for part in document["rows"][0]["parts"] if part["learned"]]
        self.assertEqual(learned, ["Yes</s>"])
        rows = [{"prompt": [user], "chosen": [good], "rejected": [bad]}] * 4
        for strategy in ("dpo", "orpo"):
            document, text = self.inspect(
                f"{{{strategy}: {{max_prompt_length: 40}}}}", self.records(rows), tokenizer
            )
            answers = {
                row["answer"]: [part["text"] for part in row["parts"] if part["learned"]]
                for row in document["rows"]
            }
            self.assertEqual(answers, {"chosen": ["Yes</s>"], "rejected": ["No!</s>"]})
            self.assertIn("rejected answer, ", text)

    def test_a_chat_takes_no_longer_for_those_before_it(self):
        """Lines are counted for errors alone: for each chat they took a minute of this file."""
        tokenizer = self.chat_tokenizer(TEMPLATE)
        turns = [{"role": role, "content": "word " * 50} for role in ("user", "assistant")]
        data = self.records([{"messages": turns}] * 20000)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        document, _ = self.inspect(
            "{sft: {packing: true}}", data, tokenizer, "model.encoder_seq_length=1024"
        )
        self.assertIn("20000 records packed into 20000 sequences", document["description"])
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        self.assertLess(spent, 30)

    def test_every_kind_of_file_gives_the_same_batches(self):
        tokenizer = self.chat_tokenizer("{{ tools | tojson }}" + TEMPLATE)
        tools = [{"name": "add", "parameters": {"x": "int"}}]
        chats, pairs = [], []
        for i in range(8):
            system = {"role": "system", "content": f"S{i}"}
            user = {"role": "user", "content": "ü" * i}
            good, bad = ({"role": "assistant", "content": text} for text in (f"{i}漢", "no"))
            chats.append({"messages": [system, user, good], "tools": tools})
            pairs.append({"prompt": [system, user], "chosen": [good], "rejected": [bad]})
        for strategy, rows in (
            ("{sft: {}}", chats),
            ("{dpo: {max_prompt_length: 150}}", pairs),
            ("{orpo: {max_prompt_length: 150, implementation: trl}}", pairs),
        ):
            table = pyarrow.Table.from_pylist(rows)
            with pyarrow.ipc.new_stream(self.dir / "rows.arrow", table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
            pyarrow.parquet.write_table(table, self.dir / "rows.parquet", row_group_size=3)
            (self.dir / "rows.json").write_text(json.dumps(rows))
            self.records(rows, "rows.jsonl")
            batches = {}
            for kind in ("jsonl", "json", "arrow", "parquet"):
                result = self.trellis(
                    *("data", "inspect", *SHARED, f"model_alignment_strategy={strategy}"),
                    *(tokenizer, f"data.train_dir={self.dir / 'rows'}.{kind}", "--json"),
                    *("--rows=100", "--step=1", "model.encoder_seq_length=200"),
                )
                self.assertEqual(result.returncode, 0, result.stderr)
                batches[kind] = json.loads(result.stdout)["rows"]
            self.assertIn("漢", json.dumps(batches["jsonl"], ensure_ascii=False))
            for kind, batch in batches.items():
                self.assertEqual(batch, batches["jsonl"], (strategy, kind))

    def test_mistakes_name_file_and_record(self):
        def fails(strategy, rows, *texts):
            args = [*SHARED, f"model_alignment_strategy={strategy}", self.records(rows), *more]
            self.fails(self.trellis("data", "inspect", *args), 2, *texts)

        more = []
        good = {"input": "a", "output": "b"}
        fails("{sft: {packing: true}}", [good, good, {"input": "x"}], "data.jsonl:3", "`output`")
        fails("{sft: {packing: true}}", [good, {**good, "output": ""}], "data.jsonl:2", "empty")
        # Another kind of file is named by its first record, whatever the order of the samples is.
        pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 9
        fails("{sft: {}}", pairs, "data.jsonl:1: there is no column `completion`")
        no_pairs = "data.jsonl:1: there is no column `chosen`; the record has input, output"
        fails("{dpo: {}}", [good] * 9, no_pairs)
        (self.dir / "good.jsonl.gz").write_bytes(b"\x1f\x8b")
        gz = self.trellis(
            *("data", "inspect", *SHARED, "model_alignment_strategy={sft: {}}"),
            f"data.train_dir={self.dir / 'good.jsonl.gz'}",
        )
        self.fails(gz, 2, "good.jsonl.gz", "decompress it")
        long = {"input": "x" * 5000, "output": "y"}
        for packing in ("true", "false"):
            strategy = f"{{sft: {{packing: {packing}}}}}"
            fails(strategy, [long] * 4, "data.jsonl:", "shorten the prompt")
        some = [{"messages": [{"role": "assistant", "content": "x"}]}] * 4
        fails("{sft: {}}", some, "data.jsonl:", "data.tokenizer has no chat template")
        more = [self.chat_tokenizer("{% for m in messages %}")]
        chats = [{"messages": [{"role": "assistant", "content": "x"}]}] * 4
        fails("{sft: {}}", chats, "chat_template.jinja", "does not parse")
        more = [self.chat_tokenizer("{% for i in range(10**9) %}{{ i }}{% endfor %}")]
        fails("{sft: {}}", chats, "data.jsonl:", "refuses this record", "range")


class Doctor(Case):
    def test_it_names_the_python_of_chat_templates(self):
        self.assertRegex(self.trellis("doctor").stdout, r"ok +chat templates +/.*python3")
        done = self.trellis("doctor", env={"TRELLIS_PYTHON": "/bin/false"})
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"warning +chat templates +/bin/false")
        self.assertIn("pip install jinja2", done.stdout)


class LargeDocument(Case):
    def test_it_is_inspected_in_pieces(self):
        """A document of 150 million tokens: neither they nor the pages of the file stay."""
        tokens = 150_000_000
        with open(self.dir / "big.bin", "wb") as file:
            file.truncate(2 * tokens)
        header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
        index = struct.pack("<i", tokens) + struct.pack("<q", 0) + struct.pack("<qq", 0, 1)
        (self.dir / "big.idx").write_bytes(header + index)
        command = [TRELLIS, "data", "inspect", str(self.dir / "big"), "--rows", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        facts = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        self.assertEqual((process.returncode, facts["tokens"]), (0, tokens))
        self.assertLess(usage.ru_maxrss, 250 * 1024)

    def test_documents_of_lines_may_hold_zeros(self):
        rows = [{"text": "a\0b"}, {"text": ""}, {"text": "c"}]
        (self.dir / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        said = self.trellis("data", "build", "d.jsonl", "--output", "d")
        self.assertIn("2 documents, 6 tokens", said.stdout)
        self.assertIn("1 documents left out", said.stdout + said.stderr)


if __name__ == "__main__":
    unittest.main()
