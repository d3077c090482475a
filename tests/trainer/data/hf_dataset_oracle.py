"""Data sets that the Python package `datasets` has saved, and what is said of broken ones."""

import json
import unittest

import datasets
import numpy as np
from probe import Case, probe

datasets.disable_progress_bars()
S = 8


class Saved(Case):
    def save(self, name="data", features=None, shards=1, **columns):
        directory = self.dir / name
        data = datasets.Dataset.from_dict(
            columns, features=datasets.Features(features) if features else None
        )
        data.save_to_disk(str(directory), num_shards=shards)
        return directory

    def rows(self, directory):
        return probe(ask="hf_rows", directory=str(directory), sequence_length=S)

    def test_rows_equal_load_from_disk_with_labels_moved_by_one(self):
        rng = np.random.RandomState(1)
        ids = rng.randint(0, 1000, (50, S)).tolist()
        labels = [[-100 if token % 5 == 0 else token for token in row] for row in ids]
        for shards in (1, 4):
            directory = self.save(
                f"shards{shards}",
                shards=shards,
                input_ids=ids,
                labels=labels,
                attention_mask=[[1] * S] * 50,
            )
            loaded = datasets.load_from_disk(str(directory))
            expected = [
                {"tokens": row["input_ids"], "labels": row["labels"][1:] + [-100]} for row in loaded
            ]
            self.assertEqual(self.rows(directory), expected)

    def test_every_width_of_numbers_and_kind_of_list(self):
        ids = [[1, 2, 3, 4, 5, 6, 7, 100]] * 3
        for value in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
            for length in (-1, S):
                directory = self.save(
                    f"{value}{length}",
                    features={"input_ids": datasets.Sequence(datasets.Value(value), length=length)},
                    input_ids=ids,
                )
                self.assertEqual(
                    self.rows(directory), [{"tokens": ids[0], "labels": ids[0][1:] + [-100]}] * 3
                )
        directory = self.save(
            "large",
            features={"input_ids": datasets.LargeList(datasets.Value("int64"))},
            input_ids=ids,
        )
        self.assertEqual(self.rows(directory)[0]["tokens"], ids[0])

    def test_a_selection_of_rows(self):
        data = datasets.Dataset.from_dict({"input_ids": [[i] * S for i in range(10)]}).select(
            [7, 2, 5]
        )
        data.save_to_disk(str(self.dir / "selected"))
        self.assertEqual([row["tokens"][0] for row in self.rows(self.dir / "selected")], [7, 2, 5])

    def test_padding_at_the_right_has_no_loss(self):
        directory = self.save(
            input_ids=[[5, 6, 7, 8, 0, 0, 0, 0]],
            labels=[[5, 6, 7, 8, 0, 0, 0, 0]],
            attention_mask=[[1, 1, 1, 1, 0, 0, 0, 0]],
        )
        self.assertEqual(self.rows(directory)[0]["labels"], [6, 7, 8, -100, -100, -100, -100, -100])

    def refuse(self, directory, *texts):
        self.refused(*texts, ask="hf_rows", directory=str(directory), sequence_length=S)

    def test_rows_that_do_not_fit_are_named(self):
        self.refuse(
            self.save("left", input_ids=[[1] * S], attention_mask=[[0, 0] + [1] * 6]),
            "row 0 of the data set, column attention_mask",
            "pad at the right",
        )
        self.refuse(
            self.save("short", input_ids=[[1] * S, [1] * 5]),
            "row 1 of the data set, column input_ids: expected model.encoder_seq_length = 8 "
            "numbers, got 5",
        )
        self.refuse(self.save("text", text=["hello"]), "column input_ids: there is no such column")
        self.refuse(
            self.save("string", input_ids=[["a"] * S]),
            "expected lists of whole numbers, got list<item: string>",
        )
        self.refuse(
            self.save("null", input_ids=[None, [1] * S]),
            "row 0 of the data set, column input_ids: expected a list, got null",
        )
        self.refuse(self.save("empty", input_ids=[]), "the data set has no rows")

    def test_files_that_are_missing_or_broken_are_named(self):
        self.refuse(self.dir / "nowhere", "data.train_dir:", "there is no such directory")
        datasets.DatasetDict(
            {"train": datasets.Dataset.from_dict({"input_ids": [[1] * S]})}
        ).save_to_disk(str(self.dir / "dictionary"))
        self.refuse(
            self.dir / "dictionary",
            "this is a dictionary of data sets: name one of them, ",
            "dictionary/train",
        )
        directory = self.save(input_ids=[[1] * S] * 100)
        state = json.loads((directory / "state.json").read_text())
        arrow = directory / state["_data_files"][0]["filename"]
        good = arrow.read_bytes()
        for length in (0, 3, 100, len(good) // 2, len(good) - 8):
            arrow.write_bytes(good[:length])
            self.refuse(directory, str(arrow))
        arrow.write_bytes(b"\0" * len(good))
        self.refuse(directory, str(arrow))
        arrow.unlink()
        self.refuse(directory, "there is no such file, and state.json names it")
        (directory / "state.json").write_text("{")
        self.refuse(directory, "state.json: this is no JSON")
        (directory / "state.json").write_text('{"_data_files": 3}')
        self.refuse(directory, "_data_files: expected a list of files, got number")


if __name__ == "__main__":
    unittest.main()
