"""WordPiece and Unigram tokenizers, and the normal forms of Unicode, against Hugging Face
`tokenizers`."""

import json
import unittest

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers_oracle import CORPUS, TokenizersCase, train


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


class NormalForms(TokenizersCase):
    def test_each(self):
        for form in (normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD):
            tokenizer = train(
                pre_tokenizers.ByteLevel(add_prefix_space=False), size=400, normalizer=form()
            )
            self.compare(tokenizer, decode=False)


if __name__ == "__main__":
    unittest.main()
