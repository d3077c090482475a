"""Records of fine-tuning as samples: masks, truncation, packing and order against the rules in
Python, from every kind of file; what is said of records that are wrong."""

import json
import pathlib
import random
import unittest

import datasets
import pyarrow
import pyarrow.parquet
import torch
import trl
from probe import Case, probe
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from trl.trainer.dpo_trainer import DataCollatorForPreference

datasets.disable_progress_bars()
IGNORED, EOS, S = -100, 256, 24
CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + "
    "' [/INST]' }}{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
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

    def pairs(self, *lengths):
        rng, rows = random.Random(2), []
        for _ in range(60):
            texts = ["".join(rng.choice("xyz") for _ in range(rng.choice(lengths))) for _ in "123"]
            rows.append(dict(zip(("prompt", "chosen", "rejected"), texts, strict=True)))
        return rows

    def test_preferences_are_cut_as_one_as_trl_does(self):
        rows = self.pairs(1, 4, 9, 20)
        for mode in ("keep_start", "keep_end"):
            collate = DataCollatorForPreference(EOS, max_length=S, truncation_mode=mode)
            examples = [
                dict(
                    prompt_ids=ids(row["prompt"]),
                    chosen_ids=[*ids(row["chosen"]), EOS],
                    rejected_ids=[*ids(row["rejected"]), EOS],
                )
                for row in rows
            ]
            batch = collate(examples)
            got = self.rows(self.jsonl(rows), preferences=True, keep_end=mode == "keep_end")
            parts = got + [sample["rejected"] for sample in got]
            self.assertEqual(len(parts), len(batch["input_ids"]))
            for part, tokens, mask, attended in zip(
                parts,
                batch["input_ids"].tolist(),
                batch["completion_mask"].tolist(),
                batch["attention_mask"].tolist(),
                strict=True,
            ):
                tokens, length = padded(tokens, EOS), sum(attended)
                labels = [t if m else IGNORED for t, m in zip(tokens[1:], mask[1:], strict=False)]
                self.assertEqual(part["tokens"][:length], tokens[:length])
                self.assertEqual(part["labels"], padded(labels, IGNORED))
        long = [dict(prompt="p" * S, chosen="c", rejected="r")]
        asked = self.ask(self.jsonl(long), preferences=True)
        self.refused("data.jsonl:1", "of its answer none", "keep_end", **asked)

    def test_preferences_are_cut_in_parts_with_max_prompt_length(self):
        rows = self.pairs(1, 4, 9, 30)
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

    def llama2_tokenizer(self):
        """SentencePiece's BPE: a text begins with ▁, which no answer within a chat has."""
        text = "the vine is red and the wall is old , how many leaves ? the answer is seven ."
        inner = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        inner.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        special = ["<unk>", "<s>", "</s>"]
        inner.train_from_iterator(
            [text] * 3,
            trainers.BpeTrainer(vocab_size=90, special_tokens=special, show_progress=False),
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        )
        tokenizer.chat_template = LLAMA2
        tokenizer.save_pretrained(self.dir / "tokenizer")
        return tokenizer

    def learned(self, sample):
        return [t for t in sample["labels"] if t != IGNORED]

    def words(self, *messages):
        roles = ("user", "assistant") * 9
        return [dict(role=r, content=c) for r, c in zip(roles, messages, strict=False)]

    def test_a_chat_is_encoded_as_a_whole(self):
        """Ids are apply_chat_template's; what is learned is its mask of {% generation %}."""
        chats = [
            self.words("how many leaves", "the answer is seven ."),
            self.words("the vine", "\nis red", "and", "the wall is old"),
            self.words("leaves ?", "seven  , 漢漢 the"),
        ]
        marked = {
            LLAMA2: LLAMA2.replace(
                "{{ ' ' + m.content + ' ' + eos_token }}",
                "{% generation %}{{ ' ' + m.content + ' ' + eos_token }}{% endgeneration %}",
            ),
            CHATML: "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
            "{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}</s>"
            "{% endif %}{% endfor %}",
        }
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"), sequence_length=200)
        path = self.jsonl([dict(messages=chat) for chat in chats])
        for make in (self.llama2_tokenizer, self.chat_tokenizer):
            for plain, template in marked.items():
                tokenizer = make()
                expected = [
                    tokenizer.apply_chat_template(
                        chat,
                        chat_template=template,
                        return_dict=True,
                        return_assistant_tokens_mask=True,
                    )
                    for chat in chats
                ]
                for used in (plain, template):
                    (self.dir / "tokenizer" / "chat_template.jinja").write_text(used)
                    for sample, one in zip(self.rows(path, **more), expected, strict=True):
                        whole = one["input_ids"]
                        self.assertEqual(sample["tokens"][: len(whole)], whole)
                        mask = one["assistant_masks"]
                        chosen = [t for t, m in zip(whole, mask, strict=True) if m]
                        self.assertEqual(self.learned(sample), chosen, used)

    def stock(self, name):
        return (pathlib.Path(trl.__file__).parent / "chat_templates" / name).read_text()

    def test_templates_that_write_earlier_turns_differently_train(self):
        thought = "<think>\nwhy\n</think>\n\nA1"
        llama3 = self.stock("llama3.jinja").replace("{% if add_generation_prompt %}", "{% if 1 %}")
        qwen3 = self.stock("qwen3.jinja")
        call = dict(name="f", arguments={"x": 1})
        used = [
            dict(role="user", content="Q0"),
            dict(role="assistant", content="", tool_calls=[dict(type="function", function=call)]),
            dict(role="tool", content="R"),
            *self.words("Q1", "A1")[1:],
            *self.words("Q2", "A2"),
        ]
        tool = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n'
        last = "<think>\n\n</think>\n\nA2<|im_end|>\n"
        end, ended = "<|eot_id|>", "<|im_end|>\n"
        for template, chat, answers in (
            (llama3, self.words("Q1", "A1", "Q2", "A2"), ["A1" + end, "A2" + end]),
            (llama3, self.words("Q1", "A1"), ["A1" + end]),
            (qwen3, self.words("Q1", "A1", "Q2", "A2"), ["A1" + ended, last]),
            (qwen3, self.words("Q1", thought, "Q2", "A2"), ["A1" + ended, last]),
            (qwen3, used, [tool, "A1" + ended, last]),
        ):
            tokenizer = self.chat_tokenizer(template)
            special = [
                end,
                "<|im_end|>",
                "<|im_start|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
            ]
            tokenizer.add_special_tokens({"additional_special_tokens": special})
            tokenizer.save_pretrained(self.dir / "tokenizer")
            more = dict(library="huggingface", type=str(self.dir / "tokenizer"))
            (sample,) = self.rows(self.jsonl([dict(messages=chat)]), sequence_length=400, **more)
            whole = tokenizer.apply_chat_template(chat, return_dict=False)
            self.assertEqual(sample["tokens"][: len(whole)], whole)
            self.assertEqual(tokenizer.decode(self.learned(sample)), "".join(answers))
            # As a prompt and its completion, the answer alone.
            record = dict(prompt=chat[:-1], completion=chat[-1:])
            (sample,) = self.rows(self.jsonl([record]), sequence_length=400, **more)
            self.assertEqual(tokenizer.decode(self.learned(sample)), answers[-1])

    def test_special_tokens_are_added_once(self):
        tokenizer = self.chat_tokenizer()
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"))
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        row = dict(prompt="p", completion="c")
        rows = [
            row,
            {**row, "completion": "c</s>"},
            {**row, "prompt": "<s>p"},
            dict(text="<s>c</s>"),
        ]
        plain = [bos, *tokenizer("p")["input_ids"], *tokenizer("c")["input_ids"], eos]
        expected = [plain, plain, plain, [bos, *tokenizer("c")["input_ids"], eos]]
        got = self.rows(self.jsonl(rows), **more)
        self.assertEqual([g["tokens"][: len(e)] for g, e in zip(got, expected)], expected)
        pair = dict(prompt="p", chosen="c</s>", rejected="c")
        (got,) = self.rows(self.jsonl([pair]), preferences=True, **more)
        self.assertEqual(got["tokens"], got["rejected"]["tokens"])

    def test_the_tokenizers_own_post_processor(self):
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"))
        rows = self.jsonl([dict(prompt="p", completion="c")])
        for config, template in (
            ({}, None),
            ({}, "<s> $A"),
            ({}, "<s> <s> $A </s>"),
            ({"add_bos_token": True}, None),
            ({"add_bos_token": False, "add_eos_token": True}, "<s> $A"),
        ):
            tokenizer = self.chat_tokenizer()
            if template:
                special = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
                tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
                    single=template, special_tokens=special
                )
            tokenizer.save_pretrained(self.dir / "tokenizer")
            file = self.dir / "tokenizer" / "tokenizer_config.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
            loaded = AutoTokenizer.from_pretrained(self.dir / "tokenizer")
            whole = loaded("pc")["input_ids"]
            if whole[-1] != loaded.eos_token_id:
                whole.append(loaded.eos_token_id)
            (got,) = self.rows(rows, special_tokens="post_processor", **more)
            self.assertEqual(got["tokens"][: len(whole)], whole, (config, template))

    def test_folders_of_datasets_are_what_their_state_says(self):
        some = [dict(input=f"q{i}", output="a") for i in range(6)]
        folder = self.dir / "saved"
        datasets.Dataset.from_list(some).save_to_disk(str(folder))
        expected = self.rows(folder)
        loaded = datasets.load_from_disk(str(folder))
        loaded.map(lambda row: {"output": "b"})
        loaded.filter(lambda row: row["input"] != "q1")
        loaded.shuffle(seed=1)
        self.assertGreater(len(list(folder.glob("cache-*.arrow"))), 0)
        self.assertEqual(self.rows(folder), expected)
        chosen = loaded.filter(lambda row: row["input"] != "q1").shuffle(seed=1)
        chosen.save_to_disk(str(self.dir / "chosen"))
        self.assertEqual(len(self.rows(self.dir / "chosen")), 5)
        both = datasets.DatasetDict(train=loaded, test=loaded.select([0]))
        both.save_to_disk(str(self.dir / "both"))
        self.refused("dictionary", "both/train or ", "both/test", **self.ask(self.dir / "both"))
        self.assertEqual(len(self.rows(self.dir / "both" / "test")), 1)

    def test_columns_of_types_that_json_does_not_have(self):
        """No one reads them: they are no error. Objects of several kinds are text to datasets 5."""
        mixed = [
            dict(role="user", content="u"),
            dict(role="assistant", content="a", tool_calls=[{"x": 1}]),
        ]
        features = datasets.Features(
            messages=[datasets.Json()], picture=datasets.Value("binary"), other=datasets.Json()
        )
        row = dict(messages=mixed, picture=b"\xff", other={"a": [1, None]})
        folder = self.dir / "saved"
        datasets.Dataset.from_list([row], features=features).save_to_disk(str(folder))
        tokenizer = self.chat_tokenizer()
        more = dict(library="huggingface", type=str(self.dir / "tokenizer"))
        (sample,) = self.rows(folder, **more)
        whole = tokenizer.apply_chat_template(mixed, return_dict=False)
        self.assertEqual(sample["tokens"][: len(whole)], whole)
        table = pyarrow.table({"prompt": [b"p"], "completion": ["c"]})
        with pyarrow.ipc.new_stream(self.dir / "x.arrow", table.schema) as writer:
            writer.write_table(table)
        self.refused("x.arrow: record 1", "prompt", "binary", **self.ask(self.dir / "x.arrow"))

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
