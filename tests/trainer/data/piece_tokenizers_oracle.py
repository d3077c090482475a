"""WordPiece and Unigram tokenizers, and the normal forms of Unicode, against Hugging Face
`tokenizers`."""

import base64
import io
import itertools
import json
import random
import unittest

import sentencepiece
from probe import probe
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers_oracle import CORPUS, LLAMA3, TokenizersCase, train
from transformers.convert_slow_tokenizer import bytes_to_unicode


class WordPiece(TokenizersCase):
    def test_bert_cased_and_uncased(self):
        for lower in (True, False):
            tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
            tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            tokenizer.decoder = decoders.WordPiece(cleanup=lower)
            tokenizer.train_from_iterator(
                CORPUS,
                trainers.WordPieceTrainer(
                    vocab_size=2000,
                    special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]"],
                    show_progress=False,
                ),
            )
            self.compare(tokenizer)

    def test_words_and_punctuation(self):
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
        )
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.Strip(),
            ]
        )
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(
            vocab_size=1200, special_tokens=["<unk>"], show_progress=False
        )
        tokenizer.train_from_iterator(CORPUS, trainer)
        self.compare(tokenizer)


class Unigram(TokenizersCase):
    def unigram(self, **model):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        special = ["<unk>"]
        if model.get("byte_fallback"):
            special += [f"<0x{byte:02X}>" for byte in range(256)]
        tokenizer.train_from_iterator(
            CORPUS[:6] + CORPUS[-4:],
            trainers.UnigramTrainer(
                vocab_size=1500, special_tokens=special, unk_token="<unk>", show_progress=False
            ),
        )
        document = json.loads(tokenizer.to_str())
        document["model"].update(model)
        document["added_tokens"] = document["added_tokens"][:1]
        return Tokenizer.from_str(json.dumps(document))

    def test_scores_decide(self):
        self.compare(self.unigram())

    def test_cuts_of_equal_score(self):
        """Sums of scores differ in the last bit, or not at all: the same cut must win."""
        choice = random.Random(1)
        for digits in (1, 2, 16, 17):
            vocab = [("<unk>", 0.0)] + [
                ("".join(piece), -float(f"{length * choice.choice((1.1, 1.3)):.{digits}g}"))
                for length in (1, 2, 3)
                for piece in itertools.product("ab", repeat=length)
            ]
            tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
            words = [
                "".join(choice.choice("aabbx") for _ in range(choice.randint(1, 12)))
                for _ in range(400)
            ]
            self.compare(tokenizer, words, decode=False)

    def test_bytes_in_place_of_unknown_characters(self):
        self.compare(self.unigram(byte_fallback=True), decode=False)

    def test_what_is_wrong_is_named(self):
        good = json.loads(self.unigram().to_str())
        path = self.dir / "tokenizer.json"
        for change, text in (
            (dict(vocab=[]), "model.vocab: expected a list"),
            (dict(vocab=[["a"]]), 'model.vocab[0]: expected ["piece", score]'),
            (dict(unk_id=99999), "model.unk_id: expected an id of the vocabulary"),
        ):
            document = json.loads(json.dumps(good))
            document["model"].update(change)
            path.write_text(json.dumps(document))
            self.refused(
                str(path), text, ask="tokenize", texts=["a"], library="huggingface", type=str(path)
            )


class SentencePiece(TokenizersCase):
    def test_cuts_of_equal_score(self):
        """Few scores: most texts have several best cuts, and the library's own must win."""
        choice = random.Random(2)
        words = ["".join(choice.choices("abcd", k=choice.randint(1, 7))) for _ in range(400)]
        texts = ["".join(choice.choices("abcde ", k=choice.randint(1, 30))) for _ in range(300)]
        for kind in ("unigram", "bpe"):
            trained = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(" ".join(words[i : i + 8]) for i in range(0, 400, 8)),
                model_writer=trained,
                vocab_size=60,
                hard_vocab_limit=False,
                model_type=kind,
                minloglevel=2,
            )
            model = sentencepiece_model_pb2.ModelProto()
            model.ParseFromString(trained.getvalue())
            for piece in model.pieces:
                if piece.type == piece.NORMAL:
                    piece.score = -float(choice.randint(1, 4))
            path = self.dir / f"{kind}.model"
            path.write_bytes(model.SerializeToString())
            oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
            got = probe(ask="tokenize", texts=texts, library="sentencepiece", model=str(path))
            self.assertEqual(got["ids"], [oracle.encode(text) for text in texts], kind)


class Tiktoken(TokenizersCase):
    """The file is made of a trained vocabulary; the oracle is the tokenizer that transformers'
    TikTokenConverter makes of it."""

    def ranks(self):
        trained = train(pre_tokenizers.ByteLevel(add_prefix_space=False), size=900)
        back = {c: bytes([b]) for b, c in bytes_to_unicode().items()}
        tokens = [t for t in trained.get_vocab() if t != "<|eot|>"]
        tokens = [b"".join(back[c] for c in token) for token in tokens]
        return sorted(tokens, key=lambda token: (len(token), token))

    def write(self, tokens):
        path = self.dir / "tokenizer.model"
        lines = [f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)]
        path.write_text("".join(lines))
        return path

    def test_equals_transformers(self):
        tokens = self.ranks()
        path = self.write(tokens)
        ranks = {token: i for i, token in enumerate(tokens)}
        letters = bytes_to_unicode()
        word = lambda token: "".join(letters[b] for b in token)  # noqa: E731
        merges = []
        for token, rank in ranks.items():
            cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
            cuts = [(a, b) for a, b in cuts if a in ranks and b in ranks]
            cuts.sort(key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
            merges += [(rank, word(a), word(b)) for a, b in cuts]
        merges = [(a, b) for _, a, b in sorted(merges, key=lambda merge: merge[0])]
        vocabulary = {word(token): rank for token, rank in ranks.items()}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        request = dict(library="tiktoken", model=str(path))
        self.compare(tokenizer, **request)
        answer = probe(ask="tokenize", texts=["a<|end_of_text|>"], type="llama3", **request)
        self.assertEqual(answer["eos"], len(tokens) + 1)
        self.assertEqual(answer["ids"][0][-1], len(tokens) + 1)
        self.assertEqual(answer["vocab_size"], len(tokens) + 256)

    def test_what_is_wrong_is_named(self):
        tokens = self.ranks()
        ask = dict(ask="tokenize", texts=["a"], library="tiktoken")
        path = self.write(tokens[1:])
        self.refused(
            str(path), "expected a token for each byte; 0 has none", model=str(path), **ask
        )
        path = self.write(tokens)
        self.refused("llama3 or cl100k_base", model=str(path), type="gpt9", **ask)
        path.write_text(path.read_text() + "@@@@ 7\n")
        self.refused(
            f"{path}:{len(tokens) + 1}: expected a token in base64", model=str(path), **ask
        )


class NormalForms(TokenizersCase):
    def test_each(self):
        for form in (normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD):
            tokenizer = train(
                pre_tokenizers.ByteLevel(add_prefix_space=False), size=400, normalizer=form()
            )
            self.compare(tokenizer, decode=False)


if __name__ == "__main__":
    unittest.main()
