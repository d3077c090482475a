"""Trains the tokenizer that data_benchmark encodes with. Usage: train_tokenizer.py PATTERN_FILE
FOLDER"""

import json
import pathlib
import sys
import sysconfig

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

pattern = pathlib.Path(sys.argv[1]).read_text()
library = pathlib.Path(sysconfig.get_paths()["stdlib"])
files = [str(path) for path in sorted(library.rglob("*.py"))[::4]]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
texts = (pathlib.Path(file).read_text(encoding="utf-8", errors="ignore") for file in files)
tokenizer.train_from_iterator(
    texts,
    trainers.BpeTrainer(
        vocab_size=32000,
        special_tokens=["<|end_of_text|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    ),
)
folder = pathlib.Path(sys.argv[2])
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end_of_text|>"}))
