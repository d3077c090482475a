"""Tokenizers that are damaged or not supported are refused with file and key."""

import io
import json
import unittest

import numpy as np
import sentencepiece
from probe import probe
from tokenizers import pre_tokenizers
from tokenizers_oracle import CORPUS, TokenizersCase, train


def put(path, value):
    def change(document):
        *parents, last = path.split(".")
        for parent in parents:
            document = document[parent]
        document[last] = value

    return change


class BadFiles(TokenizersCase):
    def broken(self, change, *texts):
        document = json.loads(self.good)
        change(document)
        path = self.dir / "tokenizer.json"
        path.write_text(json.dumps(document))
        self.refused(
            str(path), *texts, ask="tokenize", texts=["abc"], library="huggingface", type=str(path)
        )

    def test_each_is_named_with_its_place(self):
        self.good = train(pre_tokenizers.ByteLevel(add_prefix_space=False), size=400).to_str()
        self.broken(
            put("model.type", "WordLevel"),
            "model.type: the model WordLevel after ByteLevel is not supported",
        )
        self.broken(put("model.dropout", 0.1), "model.dropout: dropout of merges is not supported")
        self.broken(put("model.vocab", []), "model.vocab: expected an object")
        self.broken(put("model.vocab", {}), "the vocabulary is empty")
        self.broken(put("model.vocab.a", "x"), 'model.vocab.a: expected a token id, got "x"')
        self.broken(put("model.vocab.a", -3), "model.vocab.a: expected a token id, got -3")
        self.broken(put("model.vocab.a", 66), "have one id, 66")
        self.broken(put("model.vocab.a", 200000000), "expected ids without large gaps")
        self.broken(put("model.merges", {}), "model.merges: expected a list of merges, got {}")
        self.broken(
            put("model.merges", ["a"]),
            'model.merges[0]: expected two tokens with one space between them, got "a"',
        )
        self.broken(
            put("model.merges", [["a", "b", "c"]]),
            'model.merges[0]: expected "left right" or ["left", "right"]',
        )
        self.broken(
            put("model.merges", ["a zzz"]),
            'merge 0 ("a" "zzz"): the token "zzz" is not in the vocabulary',
        )
        self.broken(
            put("model.unk_token", "nothere"), 'model.unk_token: "nothere" is not in the vocabulary'
        )

    def test_each_part_but_the_model_is_named_with_its_place(self):
        self.good = train(pre_tokenizers.ByteLevel(add_prefix_space=False), size=400).to_str()
        self.broken(
            put("normalizer", {"type": "Precompiled"}),
            "normalizer.type: the normalizer Precompiled (known: Sequence, Prepend, ",
        )
        self.broken(put("pre_tokenizer", {"type": "FixedLength"}), "the pre-tokenizer FixedLength")
        self.broken(
            put(
                "pre_tokenizer",
                {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"},
            ),
            "pattern: expected a regular expression, got (a: missing closing parenthesis",
        )
        self.broken(
            put(
                "pre_tokenizer",
                {"type": "Split", "pattern": {"String": "a"}, "behavior": "Sideways"},
            ),
            "behavior: expected Isolated, Removed",
        )
        self.broken(put("decoder", {"type": "CTC"}), "the decoder CTC")
        self.broken(
            put("added_tokens", [{"id": "x", "content": "a"}]),
            "added_tokens[0].id: expected a token id",
        )
        self.broken(
            lambda document: document.pop("model"),
            'expected a tokenizer.json with the member "model"',
        )

    def test_files_that_are_not_there_or_no_json(self):
        path = self.dir / "tokenizer.json"
        ask = dict(ask="tokenize", texts=[])
        self.refused(
            "data.tokenizer.type:",
            "there is no such file",
            "names of models on a hub are not fetched",
            **ask,
            library="huggingface",
            type=str(path),
        )
        path.write_text('{"model": {"vocab"')
        self.refused(f"{path}: this is no JSON", **ask, library="huggingface", type=str(path))
        self.refused("data.tokenizer.type: missing", **ask, library="huggingface")
        self.refused("data.tokenizer.library: expected byte-level", **ask, library="regex")
        self.refused(
            "expected GPT2BPETokenizer or GPTSentencePieceTokenizer",
            **ask,
            library="megatron",
            type="BertWordPiece",
        )
        (self.dir / "vocab.json").write_text('{"a": 0, "b": 1}')
        (self.dir / "merges.txt").write_text("#version: 0.2\na b c\n")
        self.refused(
            "merges.txt:2: expected two tokens with one space between them",
            **ask,
            library="megatron",
            type="GPT2BPETokenizer",
            vocab_file=str(self.dir / "vocab.json"),
            merge_file=str(self.dir / "merges.txt"),
        )
        model = self.dir / "x.model"
        for content in (b"", b"no model", bytes(range(200))):
            model.write_bytes(content)
            self.refused(
                f"{model}: expected a SentencePiece model",
                **ask,
                library="sentencepiece",
                model=str(model),
            )

    def test_a_sentencepiece_model_whose_character_map_leads_out_of_it(self):
        """The library follows the map's trie wherever it points."""
        from sentencepiece import sentencepiece_model_pb2

        rules = self.dir / "rules.tsv"
        rules.write_text("41\t61\n")
        good = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS[-1].splitlines()),
            model_writer=good,
            vocab_size=300,
            hard_vocab_limit=False,
            minloglevel=2,
            byte_fallback=True,
            normalization_rule_tsv=str(rules),
        )
        path = self.dir / "map.model"

        def broken(change):
            model = sentencepiece_model_pb2.ModelProto()
            model.ParseFromString(good.getvalue())
            charsmap = model.normalizer_spec.precompiled_charsmap
            size = int.from_bytes(charsmap[:4], "little")
            units = np.frombuffer(charsmap[4 : 4 + size], np.uint32).copy()
            change(units)
            model.normalizer_spec.precompiled_charsmap = (
                charsmap[:4] + units.tobytes() + charsmap[4 + size :]
            )
            path.write_bytes(model.SerializeToString())
            return dict(ask="tokenize", texts=["A"], library="sentencepiece", model=str(path))

        self.assertEqual(probe(**broken(lambda units: None))["texts"], ["a"])
        for change, text in (
            (
                lambda units: np.put(units, 0, 1 << 30),
                "unit 0 of its trie points to unit 1048576 of 256",
            ),
            (
                lambda units: np.put(units, np.flatnonzero(units >> 31)[0], 1 << 31 | 1 << 20),
                "of its trie points to byte 1048576 of 2",
            ),
        ):
            self.refused(
                f"{path}: expected a SentencePiece model: its character map: ",
                text,
                **broken(change),
            )


if __name__ == "__main__":
    unittest.main()
