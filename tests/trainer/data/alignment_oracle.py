"""Records of fine-tuning as samples: masks, truncation, packing and order against the rules in
Python, from every kind of file; what is said of records that are wrong."""

import json
import random
import unittest

import datasets
import pyarrow
import pyarrow.parquet
import torch
from probe import Case, probe
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data.distributed import DistributedSampler
from transformers import PreTrainedTokenizerFast

datasets.disable_progress_bars()
IGNORED, EOS, S = -100, 256, 24
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Writes what came before an answer differently once another one follows.
FORGETFUL = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last else '…' }}")


def ids(text):
    return list(text.encode())


def records(count, seed=1, most=16):
    rng = random.Random(seed)

    def text():
        return "".join(rng.choice("abc äé漢🌱") for _ in range(rng.randint(1, most)))

    return [{"input": text(), "output": text()} for _ in range(count)]


def row_of(prompt, answer, length, keep_end=False):
    """Tokens and labels of one record, cut, without padding."""
    tokens, learned = prompt + answer, [False] * len(prompt) + [True] * len(answer)
    if len(tokens) > length:
        part = slice(-length, None) if keep_end else slice(length)
        tokens, learned = tokens[part], learned[part]
    labels = [t if m else IGNORED for t, m in zip(tokens[1:], learned[1:], strict=True)]
    return tokens, labels + [IGNORED]


def padded(row, value, length=S):
    return row + [value] * (length - len(row))


class Alignment(Case):
    def jsonl(self, rows, name="data.jsonl"):
        path = self.dir / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def ask(self, path, **more):
        request = dict(path=str(path), sequence_length=S, library="byte-level")
        return dict(ask="alignment_rows", **{**request, **more})

    def rows(self, path, **more):
        return probe(**self.ask(path, **more))["rows"]

    def chat_tokenizer(self, template=CHATML):
        vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        inner = Tokenizer(models.BPE(vocabulary, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
        )
        tokenizer.chat_template = template
        tokenizer.save_pretrained(self.dir / "tokenizer")
        return tokenizer

    def test_every_kind_of_file_gives_the_same_samples(self):
        some = [row for row in records(40) if len(ids(row["input"])) < S]
        expected = []
        for row in some:
            tokens, labels = row_of(ids(row["input"]), [*ids(row["output"]), EOS], S)
            expected.append(dict(tokens=padded(tokens, EOS), labels=padded(labels, IGNORED)))
        array = self.dir / "array.json"
        array.write_text(json.dumps(some))
        blank = self.dir / "blank.jsonl"
        blank.write_text("\n \n" + "\r\n\n".join(map(json.dumps, some)))
        table = pyarrow.Table.from_pylist(some)
        parquet = self.dir / "rows.parquet"
        pyarrow.parquet.write_table(table, parquet, row_group_size=7)
        stream, file = self.dir / "stream.arrow", self.dir / "file.arrow"
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=11)
        with pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=11)
        saved = self.dir / "saved"
        datasets.Dataset.from_list(some).save_to_disk(str(saved), num_shards=3)
        for path in (self.jsonl(some), array, blank, parquet, stream, file, saved):
            with self.subTest(path.name):
                self.assertEqual(self.rows(path), expected)
        self.assertEqual(self.rows(blank, dev_choose_samples=7), expected[:7])

    def test_truncation_keeps_start_or_end(self):
        rows = [{"prompt": "p" * p, "completion": "c" * c} for p in (1, 5, 20) for c in (1, 9, 40)]
        for keep_end in (False, True):
            expected = []
            for row in rows:
                answer = [*ids(row["completion"]), EOS]
                tokens, labels = row_of(ids(row["prompt"]), answer, S, keep_end)
                expected.append(dict(tokens=padded(tokens, EOS), labels=padded(labels, IGNORED)))
            self.assertEqual(self.rows(self.jsonl(rows), keep_end=keep_end), expected)

    def test_packing_keeps_masks_and_starts_positions_again(self):
        some = [row for row in records(60, most=9) if len(ids(row["input"])) < S - 1]
        packs, current = [], []
        for row in some:
            one = row_of(ids(row["input"]), [*ids(row["output"]), EOS], S)
            if sum(len(tokens) for tokens, _ in current) + len(one[0]) > S:
                packs.append(current)
                current = []
            current.append(one)
        packs.append(current)
        answer = probe(**self.ask(self.jsonl(some), packing=True))
        self.assertEqual(len(answer["rows"]), len(packs))
        self.assertGreater(max(map(len, packs)), 1)
        used = 0
        for got, pack in zip(answer["rows"], packs, strict=True):
            length = sum(len(tokens) for tokens, _ in pack)
            used += length
            self.assertEqual(got["tokens"], padded(sum((t for t, _ in pack), []), EOS))
            self.assertEqual(got["labels"], padded(sum((m for _, m in pack), []), IGNORED))
            positions = [p for tokens, _ in pack for p in range(len(tokens))]
            self.assertEqual(got["position_ids"], positions + list(range(S - length)))
            documents = [i + 1 for i, (tokens, _) in enumerate(pack) for _ in tokens]
            self.assertEqual(got["documents"], padded(documents, 0))
        share = 100 * (1 - used / (S * len(packs)))
        self.assertIn(f"{share:.1f} % of them padding", answer["description"])

    def test_chats_are_masked_turn_by_turn(self):
        tokenizer = self.chat_tokenizer()
        encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
        system = {"role": "system", "content": "S"}
        user, answer = {"role": "user", "content": "ü"}, {"role": "assistant", "content": "漢!"}
        rows = [
            {"messages": [user, answer]},
            {"messages": [system, user, answer, user, answer, user]},
            {"prompt": [system, user], "completion": [answer]},
        ]
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"), sequence_length=200)
        got = self.rows(self.jsonl(rows), **more)
        for row, sample in zip(rows, got, strict=True):
            messages = row.get("messages", [*row.get("prompt", []), *row.get("completion", [])])
            whole = tokenizer.apply_chat_template(messages, tokenize=False)
            tokens = encode(whole)
            self.assertEqual(sample["tokens"][: len(tokens)], tokens)
            learned = [t for t in sample["labels"] if t != IGNORED]
            turns = sum(m["role"] == "assistant" for m in messages)
            self.assertEqual(learned, encode("漢!</s>") * turns)

    def test_preferences_are_cut_by_trls_rule(self):
        rng, rows = random.Random(2), []
        for _ in range(60):
            lengths = [rng.choice((1, 4, 9, 30)) for _ in range(3)]
            texts = ["".join(rng.choice("xyz") for _ in range(n)) for n in lengths]
            rows.append(dict(zip(("prompt", "chosen", "rejected"), texts, strict=True)))
        most = 10
        for keep_end in (False, True):
            got = self.rows(
                self.jsonl(rows),
                preferences=True,
                max_prompt_length=most,
                keep_end=keep_end,
                next_tokens=True,
            )
            for row, sample in zip(rows, got, strict=True):
                prompt, chosen, rejected = (
                    ids(row["prompt"]),
                    [*ids(row["chosen"]), EOS],
                    [*ids(row["rejected"]), EOS],
                )
                longer = max(len(chosen), len(rejected))
                if len(prompt) + longer > S:
                    prompt = prompt[-most:] if keep_end else prompt[:most]
                if len(prompt) + longer > S:
                    chosen, rejected = chosen[: S - most], rejected[: S - most]
                for answer, part in ((chosen, sample), (rejected, sample["rejected"])):
                    tokens, labels = row_of(prompt, answer, S)
                    self.assertEqual(part["tokens"], padded(tokens, EOS))
                    self.assertEqual(part["labels"], padded(labels, IGNORED))
                    self.assertEqual(part["next_tokens"], padded(tokens[1:], IGNORED))

    def test_preferences_as_chats_with_and_without_a_prompt(self):
        self.chat_tokenizer()
        user = [{"role": "user", "content": "u"}]
        good, bad = [{"role": "assistant", "content": "g"}], [{"role": "assistant", "content": "b"}]
        rows = [
            dict(prompt=user, chosen=good, rejected=bad),
            dict(chosen=user + good, rejected=user + bad),
            dict(prompt="<user>u</s><assistant>", chosen="g", rejected="b"),
        ]
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"), sequence_length=64)
        got = self.rows(self.jsonl(rows), preferences=True, max_prompt_length=60, **more)
        self.assertEqual(got[0], got[1])
        # Formatted texts get the special tokens that the template wrote: bos in front.
        self.assertEqual(got[2]["tokens"][1:], got[0]["tokens"][:-1])

    def test_order_equals_torchs_distributed_sampler(self):
        for total, batch, dp in ((20, 4, 2), (23, 4, 4), (17, 6, 3), (9, 9, 1)):
            data = torch.utils.data.TensorDataset(torch.arange(total))
            steps = total // batch
            for rank in range(dp):
                sampler = DistributedSampler(data, dp, rank, shuffle=True, drop_last=True, seed=0)
                expected = []
                for epoch in range(3):
                    sampler.set_epoch(epoch)
                    order, share = list(sampler), batch // dp
                    expected += [order[i * share : (i + 1) * share] for i in range(steps)]
                for begin in (0, 2):
                    got = probe(
                        ask="sampler",
                        type="shuffled",
                        total_samples=total,
                        micro_batch_size=1,
                        global_batch_size=batch,
                        data_parallel_size=dp,
                        rank=rank,
                        batches=3 * steps - begin,
                        consumed_samples=begin * batch,
                    )
                    self.assertEqual(got, expected[begin:])

    def test_bad_records_are_named_with_their_line(self):
        good = {"input": "a", "output": "b"}

        def fails(rows, *texts, **more):
            self.refused(*texts, **self.ask(self.jsonl(rows), **more))

        for packing in (False, True):
            more = dict(packing=packing)
            fails([good, {"input": "x"}], "data.jsonl:2", "no column `output`", "has input", **more)
            fails([good, {"other": "x"}], "data.jsonl:2", "`messages`", "has other", **more)
            fails([{"input": "x", "output": ""}], "data.jsonl:1", "answer is empty", **more)
            fails([{"input": 5, "output": "y"}], "data.jsonl:1", "input: expected a text", **more)
            fails([{"input": "x", "output": None}], "column output: expected a text, got null")
            long = {"input": "x" * 30, "output": "y"}
            fails([good, good, long], "data.jsonl:3", "has 32 tokens", "24", "keep_end", **more)
            fails([{"messages": [{"role": "user", "content": "x"}]}], "data.jsonl:1", **more)
            for tools in ("[{", '{"a": 1}', 7):
                chat = {"messages": [{"role": "assistant", "content": "x"}], "tools": tools}
                fails([good, chat], "data.jsonl:2", "column tools: expected a list", **more)
            (self.dir / "cut.jsonl").write_text(json.dumps(good) + '\n\n{"input": \n')
            self.refused("cut.jsonl:3", "no JSON", **self.ask(self.dir / "cut.jsonl", **more))
        self.wrong_turns(fails)
        pair = {"prompt": "p", "chosen": "c"}
        fails([pair], "data.jsonl:1", "no column `rejected`", preferences=True)
        fails([{**pair, "rejected": ""}], "data.jsonl:1", "rejected is empty", preferences=True)
        (self.dir / "array.json").write_text(json.dumps([good, 5]))
        self.refused("array.json: record 2", **self.ask(self.dir / "array.json"))
        table = pyarrow.Table.from_pylist([{"input": "a"}])
        pyarrow.parquet.write_table(table, self.dir / "x.parquet")
        self.refused("x.parquet: record 1", "output", **self.ask(self.dir / "x.parquet"))
        (self.dir / "y.parquet").write_bytes(b"PAR1 nothing")
        self.refused("y.parquet", **self.ask(self.dir / "y.parquet"))
        (self.dir / "empty.jsonl").write_text("\n")
        self.refused("holds no record", **self.ask(self.dir / "empty.jsonl"))
        self.refused("data.train_dir", "no such", **self.ask(self.dir / "nowhere.jsonl"))

    def wrong_turns(self, fails):
        user, silent = {"role": "user", "content": "x"}, {"role": "assistant", "content": ""}
        spoken = {**silent, "content": "y"}
        for turn, text in (
            (silent, "turn 2: the answer is empty"),
            ({"role": "assistant", "content": None, "tool_calls": []}, "turn 2: the answer is"),
            ({"content": "y"}, 'turn 2: expected {role, content}, got {"content":"y"}'),
            (5, "turn 2: expected {role, content}, got 5"),
        ):
            fails([{"messages": [user, turn]}], "data.jsonl:1", f"column messages: {text}")
        fails([{"prompt": [user], "completion": [silent]}], "column completion: turn 1: the answer")
        pair = {"prompt": [user], "chosen": [spoken], "rejected": [silent]}
        fails([pair], "data.jsonl:1", "column rejected: turn 1: the answer", preferences=True)

    def test_a_template_that_forgets_is_refused_and_one_that_marks_is_not(self):
        turns = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}] * 2
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"), sequence_length=200)
        self.chat_tokenizer(FORGETFUL)
        path = self.jsonl([{"messages": turns}])
        self.refused("data.jsonl:1", "answer 1", "generation", **self.ask(path, **more))
        marked = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
        marked += "{% generation %}{{ m.content if loop.last else '.' }}{% endgeneration %}"
        marked += "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        tokenizer = self.chat_tokenizer(marked)
        (row,) = self.rows(path, **more)
        learned = [t for t in row["labels"] if t != IGNORED]
        self.assertEqual(learned, tokenizer(".a", add_special_tokens=False)["input_ids"])


if __name__ == "__main__":
    unittest.main()
