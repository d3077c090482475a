"""The Megatron data path against NumPy, PyTorch and the megatron-core package."""

import json
import math
import os
import pathlib
import subprocess
import unittest

import numpy as np
import probe as program
import torch
from probe import probe


def document_order(documents, epochs, rng, separate_last):
    if separate_last and epochs > 1:
        first = document_order(documents, epochs - 1, rng, False)
        return np.concatenate((first, document_order(documents, 1, rng, False)))
    order = np.tile(documents, epochs).astype(np.int32)
    rng.shuffle(order)
    return order


def reference_maps(sizes, first, end, num_samples, s, seed, extra=True, drop_last=True):
    """Section 7.2 of the specification, in NumPy, by positions in one concatenated text instead of
    a walk."""
    e = int(extra)
    documents = np.arange(first, end)
    per_epoch = int(sizes[first:end].sum())
    epochs = next(n for n in range(1, 10**6) if (n * per_epoch - e) // s >= num_samples)
    before_last = ((epochs - 1) * per_epoch - e) // s
    separate = epochs > 1 and num_samples - before_last < int(0.80 * ((per_epoch - e) // s))
    rng = np.random.RandomState(seed)
    order = document_order(documents, epochs, rng, separate)
    tokens = epochs * per_epoch - e
    total = tokens // s if drop_last else math.ceil(tokens / s)
    shuffle = np.arange(before_last if separate else total, dtype=np.uint32)
    rng.shuffle(shuffle)
    if separate:
        last = np.arange(before_last, total, dtype=np.uint32)
        rng.shuffle(last)
        shuffle = np.concatenate((shuffle, last))
    starts = np.concatenate(([0], np.cumsum(sizes[order])))
    return order, starts, total, shuffle


class Case(program.Case):
    def write(self, sequences, name="data", dtype=np.int32, documents=None):
        """Made by megatron-core's own builder."""
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        prefix = str(self.dir / name)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
        for i, tokens in enumerate(sequences):
            builder.add_item(torch.from_numpy(np.asarray(tokens)))
            if documents is None or i + 1 in documents:
                builder.end_document()
        builder.finalize(prefix + ".idx")
        return prefix


class MegatronCore(Case):
    def test_files_of_its_builder_are_read_equally_for_every_type(self):
        rng = np.random.RandomState(3)
        for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16):
            info = np.iinfo(dtype)
            sequences = [
                rng.randint(info.min, info.max, size, dtype=np.int64).astype(dtype)
                for size in (5, 1, 0, 33)
            ]
            prefix = self.write(sequences, np.dtype(dtype).name, dtype, documents={1, 4})
            read = probe(ask="read", prefix=prefix)
            self.assertEqual(read["type"], np.dtype(dtype).name)
            self.assertEqual(read["sequences"], [list(map(int, tokens)) for tokens in sequences])
            self.assertEqual(read["documents"], [0, 1, 4])


class IndexMaps(Case):
    def check_maps(self, sizes, first, end, num_samples, s, seed, extra=True, drop_last=True):
        sizes = np.asarray(sizes)
        prefix = self.write(
            [np.zeros(size, np.uint16) for size in sizes],
            f"d{len(list(self.dir.iterdir()))}",
            np.uint16,
        )
        answer = probe(
            ask="index_maps",
            prefix=prefix,
            first=first,
            end=end,
            num_samples=num_samples,
            sequence_length=s,
            seed=seed,
            extra_token=extra,
            drop_last=drop_last,
        )
        self.assertEqual(answer["files"], f"{prefix}_train_indexmap_{num_samples}ns_{s}sl_{seed}s")
        order, starts, total, shuffle = reference_maps(
            sizes, first, end, num_samples, s, seed, extra, drop_last
        )
        doc_idx, sample_idx, shuffle_idx = (
            np.load(f"{answer['files']}_{name}_idx.npy") for name in ("doc", "sample", "shuffle")
        )
        self.assertEqual(
            (doc_idx.dtype, sample_idx.dtype, shuffle_idx.dtype), (np.int32, np.int32, np.uint32)
        )
        np.testing.assert_array_equal(doc_idx, order)
        np.testing.assert_array_equal(shuffle_idx, shuffle)
        self.assertEqual(sample_idx.shape, (total + 1, 2))
        places = starts[sample_idx[:, 0]] + sample_idx[:, 1]
        expected = np.minimum(np.arange(total + 1) * s, starts[-1] - int(extra))
        np.testing.assert_array_equal(places, expected)
        lengths = sizes[order][sample_idx[:, 0]]
        self.assertTrue((sample_idx[:, 1] <= lengths).all())
        return answer

    def test_equal_numpy_over_sizes_seeds_and_epochs(self):
        rng = np.random.RandomState(11)
        for case in range(30):
            sizes = rng.randint(0, 60, rng.randint(3, 40))
            s = int(rng.randint(1, 50))
            if sizes.sum() < s + 1:
                continue
            with self.subTest(case=case):
                self.check_maps(
                    sizes,
                    0,
                    len(sizes),
                    int(rng.randint(1, 200)),
                    s,
                    int(rng.randint(2**31)),
                    bool(case % 2),
                    case % 3 != 0,
                )

    def test_equal_megatron_cores_sample_index(self):
        from megatron.core.datasets import helpers_cpp

        sizes = np.random.RandomState(5).randint(1, 90, 25).astype(np.int32)
        answer = self.check_maps(sizes, 0, 25, 70, 16, 99)
        doc_idx = np.load(answer["files"] + "_doc_idx.npy")
        epochs = len(doc_idx) // 25
        theirs = helpers_cpp.build_sample_idx_int32(
            sizes, doc_idx, 16, epochs, int(sizes.sum()), True, 1
        )
        np.testing.assert_array_equal(np.load(answer["files"] + "_sample_idx.npy"), theirs)

    def test_a_last_epoch_below_80_percent_is_shuffled_separately(self):
        sizes = [101] * 10  # 1010 tokens: 100 samples of 10 an epoch
        for num_samples, separate in ((100, False), (150, True), (181, False), (199, False)):
            answer = self.check_maps(sizes, 0, 10, num_samples, 10, 7)
            doc_idx = np.load(answer["files"] + "_doc_idx.npy")
            if separate:
                self.assertEqual(sorted(doc_idx[:10]), list(range(10)))
            elif num_samples > 100:
                self.assertNotEqual(sorted(doc_idx[:10]), list(range(10)))

    def test_a_part_of_the_sequences(self):
        self.check_maps(list(range(1, 31)), 10, 25, 40, 8, 1234)

    def test_files_are_kept_and_stale_ones_replaced(self):
        answer = self.check_maps([20] * 12, 0, 6, 10, 8, 1)
        doc_file = answer["files"] + "_doc_idx.npy"
        prefix = answer["files"].split("_train_")[0]
        before = os.stat(doc_file).st_mtime_ns
        again = dict(ask="index_maps", prefix=prefix, num_samples=10, sequence_length=8, seed=1)
        probe(**again, first=0, end=6)
        self.assertEqual(os.stat(doc_file).st_mtime_ns, before)
        probe(**again, first=6, end=12)  # another split under the same name
        self.assertEqual(sorted(set(np.load(doc_file))), list(range(6, 12)))
        pathlib.Path(doc_file).write_bytes(b"broken")
        probe(**again, first=0, end=6)
        np.testing.assert_array_equal(
            np.load(doc_file), reference_maps(np.full(12, 20), 0, 6, 10, 8, 1)[0]
        )

    def test_many_processes_race_on_one_folder(self):
        prefix = self.write([np.zeros(50, np.uint16)] * 40, "race", np.uint16)
        request = json.dumps(
            dict(
                ask="index_maps",
                prefix=prefix,
                first=0,
                end=40,
                num_samples=500,
                sequence_length=16,
                seed=3,
            )
        )
        racers = [
            subprocess.Popen(
                [program.PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(8)
        ]
        for racer in racers:
            racer.stdin.write(request)
            racer.stdin.flush()
        answers = {racer.communicate(timeout=60)[0] for racer in racers}
        self.assertEqual([racer.returncode for racer in racers], [0] * 8)
        self.assertEqual(len(answers), 1)
        self.assertEqual(list(self.dir.glob("*.partial")), [])
        np.testing.assert_array_equal(
            np.load(json.loads(answers.pop())["files"] + "_doc_idx.npy"),
            reference_maps(np.full(40, 50), 0, 40, 500, 16, 3)[0],
        )

    def test_splits_are_cut_by_cumulative_rounding(self):
        def megatron(weights, size):
            borders = [0]
            for weight in weights:
                borders.append(borders[-1] + int(round(weight / sum(weights) * float(size))))
            excess = borders[-1] - size
            borders = [0] + [max(0, border - excess) for border in borders[1:]]
            return [list(pair) for pair in zip(borders, borders[1:])]

        for weights in (
            [980, 10, 10],
            [1, 1, 1],
            [0.9, 0.05, 0.05],
            [100, 0, 0],
            [0, 1, 1],
            [969, 30, 1],
        ):
            for size in (1, 2, 3, 10, 99, 101, 12345):
                self.assertEqual(
                    probe(ask="split", weights=weights, num_sequences=size),
                    megatron(weights, size),
                    (weights, size),
                )


class Items(Case):
    EOD = 7

    def ask(self, prefix, end, indices, **options):
        return probe(
            ask="items",
            prefix=prefix,
            first=0,
            end=end,
            indices=indices,
            eod_id=self.EOD,
            **options,
        )

    def test_texts_are_the_shuffled_documents_cut_with_one_token_overlap(self):
        rng = np.random.RandomState(2)
        sequences = [rng.randint(10, 999, size) for size in rng.randint(1, 30, 20)]
        sizes = np.array([len(tokens) for tokens in sequences])
        prefix = self.write(sequences)
        for extra in (True, False):
            order, _, total, shuffle = reference_maps(sizes, 0, 20, 30, 16, 5, extra)
            text = np.concatenate([sequences[i] for i in order])
            items = self.ask(
                prefix,
                20,
                list(range(total)),
                num_samples=30,
                sequence_length=16,
                seed=5,
                extra_token=extra,
            )
            for item, sample in zip(items, shuffle):
                begin = int(sample) * 16
                self.assertEqual(item["tokens"], text[begin : begin + 16].tolist())
                self.assertEqual(item["position_ids"], list(range(16)))
                labels, mask = text[begin + 1 : begin + 17].tolist(), [1.0] * 16
                if not extra:
                    labels[15:], mask[15] = [0], 0.0
                self.assertEqual((item["labels"], item["loss_mask"]), (labels, mask))

    def test_end_of_document_masks_and_positions(self):
        prefix = self.write([[1, 2, self.EOD, 3, 4, self.EOD, self.EOD, 5, 6]])
        ask = dict(num_samples=1, sequence_length=8)
        (plain,) = self.ask(prefix, 1, [0], **ask)
        self.assertEqual(plain["loss_mask"], [1] * 8)
        (masked,) = self.ask(prefix, 1, [0], eod_mask_loss=True, **ask)
        self.assertEqual(masked["loss_mask"], [1, 1, 0, 1, 1, 0, 0, 1])
        (reset,) = self.ask(prefix, 1, [0], reset_position_ids=True, **ask)
        self.assertEqual(reset["position_ids"], [0, 1, 2, 0, 1, 2, 0, 0])

    def test_a_short_last_sample_is_padded_and_a_negative_index_has_no_loss(self):
        prefix = self.write([[1, 2, 3, 4, 5, 6]])
        ask = dict(num_samples=1, sequence_length=4, drop_last=False, seed=1)
        items = self.ask(prefix, 1, [0, 1, -1], **ask)
        by_start = {item["tokens"][0]: item for item in items[:2]}
        self.assertEqual(by_start[5]["tokens"], [5, 6, 0, 0])
        self.assertEqual(by_start[5]["labels"], [6, 0, 0, 0])
        self.assertEqual(by_start[5]["loss_mask"], [1, 0, 0, 0])
        self.assertEqual(items[2]["loss_mask"], [0] * 4)
        self.assertEqual(items[2]["tokens"], items[1]["tokens"])


class Blend(Case):
    def test_the_largest_deficit_is_served(self):
        for weights in ([0.3, 0.7], [1, 1, 1], [5, 1, 0.01, 2.5], [1]):
            shares = np.array(weights) / np.sum(weights)
            taken = np.zeros(len(weights), int)
            dataset, sample = [], []
            for i in range(2000):
                choice = int(np.argmax(shares * max(i, 1.0) - taken))
                dataset.append(choice)
                sample.append(int(taken[choice]))
                taken[choice] += 1
            answer = probe(ask="blend", weights=weights, num_samples=2000)
            self.assertEqual((answer["dataset"], answer["sample"]), (dataset, sample))
            self.assertEqual(
                answer["requests"], [math.ceil(2000 * share * 1.005) for share in shares]
            )

    def test_shares_are_within_half_a_percent_of_the_weights(self):
        counts = (
            np.bincount(probe(ask="blend", weights=[0.55, 0.25, 0.2], num_samples=10000)["dataset"])
            / 10000
        )
        np.testing.assert_allclose(counts, [0.55, 0.25, 0.2], atol=0.005)


class Samplers(Case):
    def shape(self, total, mbs, gbs, dp, **options):
        return dict(
            ask="sampler",
            total_samples=total,
            micro_batch_size=mbs,
            global_batch_size=gbs,
            data_parallel_size=dp,
            **options,
        )

    def test_single_deals_consecutive_batches_to_the_ranks(self):
        for dp in (1, 2, 4):
            for consumed in (0, 8, 24, 100, 108):
                start = consumed % 100
                batches = [list(range(first, first + 8)) for first in range(start, 100 - 7, 8)]
                for rank in range(dp):
                    answer = probe(
                        **self.shape(100, 1, 8, dp),
                        type="single",
                        rank=rank,
                        consumed_samples=consumed,
                    )
                    self.assertEqual(answer, [batch[rank::dp] for batch in batches])

    def test_single_without_drop_last_ends_short_or_padded(self):
        ask = self.shape(11, 1, 4, 2, drop_last=False)
        self.assertEqual(probe(**ask, type="single", rank=1, consumed_samples=0)[-1], [9])
        self.assertEqual(
            probe(**ask, pad=True, type="single", rank=1, consumed_samples=0)[-1], [9, -1]
        )
        self.assertEqual(
            probe(**ask, pad=True, type="single", rank=0, consumed_samples=0)[-1], [8, 10]
        )

    def test_cyclic_is_torchs_permutation_of_each_ranks_bucket(self):
        total, mbs, gbs = 103, 2, 8
        for dp in (1, 2, 4):
            active, bucket = total - total % gbs, total // (mbs * dp) * mbs
            for rank in range(dp):
                expected = []
                for consumed in range(16, 16 + 30 * gbs, gbs):
                    generator = torch.Generator().manual_seed(consumed // active)
                    order = torch.randperm(bucket, generator=generator).tolist()
                    begin = consumed % active // dp
                    expected.append([rank * bucket + x for x in order[begin : begin + gbs // dp]])
                answer = probe(
                    **self.shape(total, mbs, gbs, dp),
                    type="cyclic",
                    rank=rank,
                    consumed_samples=16,
                    batches=30,
                )
                self.assertEqual(answer, expected)

    def test_cyclic_shows_each_sample_once_an_epoch(self):
        for dp in (1, 2, 4):
            seen = [
                index
                for rank in range(dp)
                for batch in probe(
                    **self.shape(96, 2, 8, dp),
                    type="cyclic",
                    rank=rank,
                    consumed_samples=0,
                    batches=12,
                )
                for index in batch
            ]
            self.assertEqual(sorted(seen), list(range(96)))

    def test_every_error_is_named(self):
        bad = [
            (self.shape(0, 1, 4, 1), "single", 0, 0, "no sample to consume"),
            (
                self.shape(9, 0, 4, 1),
                "single",
                0,
                0,
                "data.micro_batch_size: expected a number above 0, got 0",
            ),
            (
                self.shape(9, 1, 4, 0),
                "single",
                0,
                0,
                "data-parallel size: expected a number above 0, got 0",
            ),
            (self.shape(9, 1, 4, 2), "single", 2, 0, "data-parallel rank: expected 0 … 1, got 2"),
            (
                self.shape(9, 3, 4, 1),
                "single",
                0,
                0,
                "expected a multiple of micro_batch_size × data-parallel size = 3 × 1, got 4",
            ),
            (
                self.shape(9, 1, 0, 1, pad=True),
                "single",
                0,
                0,
                "which pad_samples_to_global_batch_size fills, got 0",
            ),
            (
                self.shape(9, 1, 4, 1, pad=True),
                "cyclic",
                0,
                0,
                "pad_samples_to_global_batch_size: expected false with dataloader_type cyclic",
            ),
            (
                self.shape(9, 2, 4, 1, drop_last=False),
                "cyclic",
                0,
                0,
                "data.drop_last: expected true with dataloader_type cyclic",
            ),
            (
                self.shape(9, 2, 4, 1),
                "cyclic",
                0,
                3,
                "consumed samples of the epoch: expected a multiple of micro_batch_size × "
                "data-parallel size = 2, got 3",
            ),
        ]
        for ask, kind, rank, consumed, text in bad:
            with self.assertRaises(RuntimeError) as raised:
                probe(**ask, type=kind, rank=rank, consumed_samples=consumed, batches=1)
            self.assertIn(text, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
