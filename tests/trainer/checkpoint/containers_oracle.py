"""PyTorch, safetensors and megatron-core read what we write; we read what they write."""

import argparse
import collections
import contextlib
import enum
import io
import json
import os
import pickle
import tempfile
import unittest
import unittest.mock
import warnings
import zipfile

import numpy
import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from probe import Case, probe

DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    "complex32",
    "complex64",
    "complex128",
]


def data(tensor):
    """The bytes of a tensor in contiguous form."""
    flat = tensor.detach().contiguous().flatten()
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def sample(dtype):
    """Six elements with bytes 0, 1, 2, …; of bool 0, 1, 0, …"""
    width = torch.empty(0, dtype=dtype).element_size()
    numbers = [i % 2 if dtype == torch.bool else i for i in range(6 * width)]
    return torch.tensor(numbers, dtype=torch.uint8).view(dtype).reshape(2, 3)


VALUES = {
    "a": [1, -1, 2**40, 2.5, None, True, "é", b"\0\xff", ()],
    3: ("x", {"y": torch.Size([1, 2])}),
    "set": {5},
    "od": collections.OrderedDict(b=1),
    "dtype": torch.bfloat16,
    "args": argparse.Namespace(lr=0.1),
    "big": 2**62,
    "dd": collections.defaultdict(list, k=1),
}

# What checkpoint_probe prints of them.
DESCRIBED_VALUES = {
    "dict": [
        [
            "a",
            {
                "list": [
                    1,
                    -1,
                    2**40,
                    2.5,
                    None,
                    True,
                    "é",
                    {"bytes": "00ff"},
                    {"tuple": [], "class": ""},
                ],
                "class": "",
            },
        ],
        [
            3,
            {
                "tuple": [
                    "x",
                    {
                        "dict": [["y", {"tuple": [1, 2], "class": "torch.Size"}]],
                        "class": "",
                    },
                ],
                "class": "",
            },
        ],
        ["set", {"list": [5], "class": "builtins.set"}],
        ["od", {"dict": [["b", 1]], "class": "collections.OrderedDict"}],
        ["dtype", {"object": "torch.bfloat16", "form": 0, "arguments": [], "state": None}],
        [
            "args",
            {
                "object": "argparse.Namespace",
                "form": 2,
                "arguments": [],
                "state": {"dict": [["lr", 0.1]], "class": ""},
            },
        ],
        ["big", 2**62],
        ["dd", {"dict": [["k", 1]], "class": ""}],
    ],
    "class": "",
}


class Torch(Case):
    def described(self, value):
        torch.save(value, self.dir / "file.pt")
        return probe("torch-describe", self.dir / "file.pt")

    def assert_tensor(self, described, tensor):
        self.assertEqual(described["dtype"], str(tensor.dtype)[6:])
        self.assertEqual(described["shape"], list(tensor.shape))
        self.assertEqual(described["requires_grad"], tensor.requires_grad)
        self.assertEqual(described["is_parameter"], isinstance(tensor, torch.nn.Parameter))
        self.assertEqual(described["data"], data(tensor).hex())
        self.assertEqual(described["pieces"], described["data"])

    def test_every_type_is_read(self):
        for name in DTYPES:
            if name == "complex32":  # torch.save cannot name its storage
                continue
            with self.subTest(name):
                tensor = sample(getattr(torch, name))
                self.assert_tensor(self.described([tensor])["tensors"][0], tensor)

    def test_every_shape_is_read(self):
        base = torch.arange(240.0).reshape(2, 3, 4, 10)
        tensors = [
            torch.empty(0),
            torch.empty(3, 0, 2),
            torch.tensor(2.5),
            torch.ones(1, 1, 1),
            base.permute(3, 1, 0, 2),
            base[1],
            base[:, 1:, ::2, 3],
            base[0, 0, 0, 7],
            torch.ones(3).expand(4, 3),
            base.transpose(0, 3)[2:],
            torch.nn.Parameter(torch.ones(2, 2).t()),
            torch.ones(2, requires_grad=True),
            torch.nn.Parameter(torch.ones(2), requires_grad=False),
        ]
        described = self.described(tensors)
        self.assertEqual(len(described["tensors"]), len(tensors))
        for got, tensor in zip(described["tensors"], tensors):
            self.assert_tensor(got, tensor)
        shared = {
            t["storage"]
            for t, tensor in zip(described["tensors"], tensors)
            if tensor.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        }
        self.assertEqual(len(shared), 1)

    def test_large_strided_tensors_are_read(self):
        tensor = torch.arange(3000 * 2000, dtype=torch.int32).reshape(3000, 2000)
        torch.save(tensor.t(), self.dir / "in.pt")
        probe("torch-copy", self.dir / "in.pt", self.dir / "out.pt")
        self.assertTrue(torch.equal(torch.load(self.dir / "out.pt", weights_only=True), tensor.t()))

    def test_attributes_of_parameters_are_passed_over(self):
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.tensor_model_parallel = True
        self.assert_tensor(self.described([parameter])["tensors"][0], parameter)

    def test_values(self):
        self.assertEqual(self.described(VALUES)["root"], DESCRIBED_VALUES)
        for protocol in range(2, 6):
            torch.save(VALUES, self.dir / "file.pt", pickle_protocol=protocol)
            self.assertEqual(
                probe("torch-describe", self.dir / "file.pt")["root"], DESCRIBED_VALUES, protocol
            )

    def test_state_of_a_real_optimizer_survives(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(state, self.dir / "in.pt")
        probe("torch-copy", self.dir / "in.pt", self.dir / "out.pt")
        again = torch.load(self.dir / "out.pt", weights_only=True)
        self.assertEqual(again["model"]._metadata, state["model"]._metadata)
        model.load_state_dict(again["model"])
        optimizer.load_state_dict(again["optimizer"])
        self.assertTrue(torch.equal(again["rng"], state["rng"]))
        for key, tensor in state["model"].items():
            self.assertTrue(torch.equal(again["model"][key], tensor))
        self.assertEqual(str(again["optimizer"]), str(state["optimizer"]))

    def test_numpy_random_state_is_read_and_written(self):
        state = numpy.random.get_state()
        torch.save({"np": state}, self.dir / "in.pt")
        probe("torch-copy", self.dir / "in.pt", self.dir / "out.pt")
        again = torch.load(self.dir / "out.pt", weights_only=False)["np"]
        self.assertTrue((again[1] == state[1]).all())
        self.assertEqual(again[2:], state[2:])

    def test_what_we_write_is_loaded(self):
        probe("torch-write", self.dir / "ours.pt")
        for mmap in (False, True):
            got = torch.load(self.dir / "ours.pt", weights_only=True, mmap=mmap)
            for name in DTYPES:
                dtype = getattr(torch, name)
                self.assertEqual((got[name].dtype, tuple(got[name].shape)), (dtype, (2, 3)))
                self.assertEqual(data(got[name]), data(sample(dtype)), name)
            self.assertEqual(got["empty"].shape, (0, 3))
            parameter = got["parameter"]
            self.assertIsInstance(parameter, torch.nn.Parameter)
            self.assertTrue(parameter.requires_grad)
            self.assertTrue(torch.equal(parameter.detach(), torch.arange(8.0).reshape(2, 4)))
            self.assertTrue(torch.equal(got["transposed"], parameter.detach().t()))
            self.assertEqual(got["scalar"].item(), 5)
            with torch.no_grad():
                got["transposed"][0, 0] = 77  # one storage
            self.assertEqual(parameter[0, 0].item(), 77)
            self.assertEqual(
                got["values"],
                [
                    1,
                    -1,
                    70000,
                    2**40,
                    0.5,
                    True,
                    None,
                    "text é",
                    b"\0\xff",
                    (),
                    (1, 2, 3, 4),
                    torch.Size([2, 3]),
                    collections.OrderedDict(a=1),
                    torch.bfloat16,
                    {1, 2},
                ],
            )
            self.assertIsInstance(got["values"][11], torch.Size)
        with zipfile.ZipFile(self.dir / "ours.pt") as archive:
            self.assertIsNone(archive.testzip())
        raw = (self.dir / "ours.pt").read_bytes()
        reader = torch._C.PyTorchFileReader(str(self.dir / "ours.pt"))
        self.assertEqual({reader.get_record_offset(n) % 64 for n in reader.get_all_records()}, {0})
        self.assertEqual(
            probe("torch-describe", self.dir / "ours.pt")["tensors"][0]["data"],
            data(sample(torch.float64)).hex(),
        )
        self.assertEqual(raw[:2], b"PK")

    def test_five_gib(self):
        said = probe("torch-big", self.dir / "big.pt")
        self.assertEqual(
            (said["last"], said["after_it"]), (7, data(torch.tensor([1.0, 2.0, 3.0])).hex())
        )
        got = torch.load(self.dir / "big.pt", weights_only=True, mmap=True)
        self.assertEqual(
            (got["big"].numel(), got["big"][-1].item(), got["big"][-2].item()), (5 << 30, 7, 0)
        )
        self.assertEqual(got["after_it"].tolist(), [1, 2, 3])
        with zipfile.ZipFile(self.dir / "big.pt") as archive:
            self.assertIn(5 << 30, [record.file_size for record in archive.infolist()])

    def test_files_without_checksums_and_compressed_ones(self):
        torch.serialization.set_crc32_options(False)
        try:
            self.assert_tensor(self.described([torch.ones(3)])["tensors"][0], torch.ones(3))
        finally:
            torch.serialization.set_crc32_options(True)
        torch.save([torch.ones(3)], self.dir / "file.pt")
        with (
            zipfile.ZipFile(self.dir / "file.pt") as old,
            zipfile.ZipFile(self.dir / "new.pt", "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for record in old.infolist():
                new.writestr(record.filename, old.read(record))
        self.refused("torch-describe", self.dir / "new.pt", texts=["is compressed"])

    def test_what_is_refused(self):
        torch.save([torch.ones(2)], self.dir / "old.pt", _use_new_zipfile_serialization=False)
        self.refused(
            "torch-describe", self.dir / "old.pt", texts=["old.pt", "PyTorch 1.5 and before"]
        )
        torch.save(torch.eye(2).to_sparse(), self.dir / "sparse.pt")
        self.refused("torch-describe", self.dir / "sparse.pt", texts=["_rebuild_sparse_tensor"])
        torch.save([2**70], self.dir / "int.pt")
        self.refused("torch-describe", self.dir / "int.pt", texts=["more than 64 bits"])
        torch.save(torch.nn.Linear(1, 1), self.dir / "module.pt")
        self.refused(
            "torch-describe", self.dir / "module.pt", texts=["torch.nn.modules.linear.Linear"]
        )
        torch.save(torch.ones(2, dtype=torch.complex64).conj(), self.dir / "conj.pt")
        self.refused("torch-describe", self.dir / "conj.pt", texts=["conj"])
        torch.jit.script(torch.nn.Linear(1, 1)).save(self.dir / "script.pt")
        self.refused("torch-describe", self.dir / "script.pt", texts=["script.pt"])

        class Attack:
            def __reduce__(self):
                return os.system, (f"touch {self.mark}",)

        attack = Attack()
        attack.mark = self.dir / "run"
        torch.save([attack], self.dir / "attack.pt")
        self.refused(
            "torch-describe", self.dir / "attack.pt", texts=["posix.system", "nothing was run"]
        )
        self.assertFalse(attack.mark.exists())


class Safetensors(Case):
    def test_theirs_are_read_and_ours_load(self):
        tensors = {
            name: sample(getattr(torch, name))
            for name in DTYPES
            if name not in ("complex32", "complex128", "float8_e8m0fnu")
        }
        tensors |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(1.5), 'ünï"': torch.ones(2)}
        safetensors.torch.save_file(tensors, self.dir / "a.safetensors", {"format": "pt", "x": "y"})
        said = probe("safetensors-describe", self.dir / "a.safetensors")
        self.assertEqual(said["metadata"], {"format": "pt", "x": "y"})
        self.assertEqual(set(said["tensors"]), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(said["tensors"][name]["data"], data(tensor).hex(), name)
            self.assertEqual(said["tensors"][name]["dtype"], str(tensor.dtype)[6:])
        probe("safetensors-copy", self.dir / "a.safetensors", self.dir / "b.safetensors")
        again = safetensors.torch.load_file(self.dir / "b.safetensors")
        self.assertEqual(set(again), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(
                (again[name].dtype, again[name].shape, data(again[name])),
                (tensor.dtype, tensor.shape, data(tensor)),
            )
        with safetensors.safe_open(self.dir / "b.safetensors", "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "x": "y"})
        safetensors.torch.save_file({}, self.dir / "none.safetensors")
        self.assertEqual(
            probe("safetensors-describe", self.dir / "none.safetensors")["tensors"], {}
        )

    def test_index(self):
        index = {
            "metadata": {"total_size": 12},
            "weight_map": {"a": "one.safetensors", "b": "two.safetensors"},
        }
        (self.dir / "in.json").write_text(json.dumps(index))
        probe("index-copy", self.dir / "in.json", self.dir / "out.json")
        self.assertEqual(json.loads((self.dir / "out.json").read_text()), index)


def one_process():
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo", rank=0, world_size=1, init_method="file://" + tempfile.mktemp()
        )


class Dcp(Case):
    STATE = {
        "w": torch.arange(12.0).reshape(3, 4),
        "opt": {"step": 3, "m": torch.ones(2, dtype=torch.bfloat16), "l": [torch.zeros(2), "x"]},
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(1.5),
        "f8": sample(torch.float8_e4m3fn),
        "wide": torch.arange(300_000.0),
    }

    def blank(self):
        return {
            "w": torch.zeros(3, 4),
            "opt": {"step": 0, "m": torch.zeros(2, dtype=torch.bfloat16), "l": [torch.ones(2), ""]},
            "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(0.0),
            "f8": torch.zeros(2, 3, dtype=torch.float8_e4m3fn),
            "wide": torch.zeros(300_000),
        }

    def test_theirs_are_read_and_ours_load(self):
        one_process()
        dcp.save(self.STATE, checkpoint_id=self.dir / "theirs")
        said = probe("dcp-describe", self.dir / "theirs")
        self.assertEqual(
            said["tensors"]["w"]["chunks"],
            [{"offsets": [0, 0], "sizes": [3, 4], "data": data(self.STATE["w"]).hex()}],
        )
        self.assertEqual(said["tensors"]["opt.m"]["dtype"], "bfloat16")
        self.assertEqual(said["tensors"]["scalar"]["chunks"][0]["sizes"], [])
        self.assertEqual(said["objects"], {"opt.step": 3, "opt.l.1": "x"})
        self.assertIn(["opt.l.0", {"tuple": ["opt", "l", 0], "class": ""}], said["planner"]["dict"])
        probe("dcp-copy", self.dir / "theirs", self.dir / "ours")
        self.assertEqual(
            sorted(p.name for p in (self.dir / "ours").iterdir()),
            [".metadata", "__0_0.distcp", "__1_0.distcp"],
        )
        state = self.blank()
        dcp.load(state, checkpoint_id=self.dir / "ours")
        self.assertEqual((state["opt"]["step"], state["opt"]["l"][1]), (3, "x"))
        for name in ("w", "scalar", "f8", "wide"):
            self.assertEqual(data(state[name]), data(self.STATE[name]), name)
        self.assertTrue(torch.equal(state["opt"]["m"], self.STATE["opt"]["m"]))
        # A program that reads it without its own state.
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        dcp_to_torch_save(self.dir / "ours", self.dir / "flat.pt")
        flat = torch.load(self.dir / "flat.pt", weights_only=True)
        self.assertTrue(torch.equal(flat["opt"]["l"][0], torch.zeros(2)))

    def test_shards_of_several_ranks(self):
        """The files of a DTensor over two ranks: written by a child per rank."""
        import torch.multiprocessing as mp

        mp.spawn(
            save_sharded, args=(str(self.dir / "theirs"), str(self.dir / "rendezvous")), nprocs=2
        )
        said = probe("dcp-describe", self.dir / "theirs")
        full = torch.arange(35.0).reshape(7, 5)
        chunks = said["tensors"]["w"]["chunks"]
        self.assertEqual(
            sorted((c["offsets"], c["sizes"]) for c in chunks), [([0, 0], [4, 5]), ([4, 0], [3, 5])]
        )
        for chunk in chunks:
            at = chunk["offsets"][0]
            self.assertEqual(chunk["data"], data(full[at : at + chunk["sizes"][0]]).hex())
        probe("dcp-copy", self.dir / "theirs", self.dir / "ours")
        one_process()
        state = {"w": torch.zeros(7, 5)}
        dcp.load(state, checkpoint_id=self.dir / "ours")
        self.assertTrue(torch.equal(state["w"], full))

    def test_members_of_enumerations_by_their_names(self):
        one_process()
        dcp.save(self.STATE, checkpoint_id=self.dir / "theirs")
        expected = probe("dcp-describe", self.dir / "theirs")
        metadata = self.dir / "theirs" / ".metadata"
        content = pickle.loads(metadata.read_bytes())
        with metadata.open("wb") as file:
            EnumerationsByName(file).dump(content)
        self.assertIn(b"getattr", metadata.read_bytes())
        self.assertEqual(probe("dcp-describe", self.dir / "theirs"), expected)

    def test_transformed_entries_and_hostile_metadata_are_refused(self):
        one_process()
        from torch.distributed.checkpoint._extension import ZStandard

        if ZStandard.is_available():
            dcp.save(
                self.STATE,
                checkpoint_id=self.dir / "zstd",
                storage_writer=dcp.FileSystemWriter(self.dir / "zstd", _extensions=[ZStandard()]),
            )
            self.refused("dcp-describe", self.dir / "zstd", texts=["transformed"])
        (self.dir / "bad").mkdir()
        (self.dir / "bad" / ".metadata").write_bytes(pickle.dumps(os.system))
        self.refused("dcp-describe", self.dir / "bad", texts=["posix.system"])


class EnumerationsByName(pickle.Pickler):
    """Pickles members of enumerations as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value):
        if isinstance(value, enum.Enum):
            return getattr, (type(value), value.name)
        return NotImplemented


def save_sharded(rank, folder, rendezvous):
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + rendezvous)
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    mesh = DeviceMesh("cpu", [0, 1])
    dcp.save(
        {"w": distribute_tensor(torch.arange(35.0).reshape(7, 5), mesh, [Shard(0)])},
        checkpoint_id=folder,
    )
    dist.destroy_process_group()


class Megatron(Case):
    def state(self, fill):
        from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

        tensor = ShardedTensor.from_rank_offsets(
            "layer.w", fill(torch.arange(12.0).reshape(3, 4)), (0, 0, 1), prepend_axis_num=0
        )
        layered = ShardedTensor.from_rank_offsets(
            "layers.b", fill(torch.arange(4).to(torch.bfloat16)), (0, 0, 1), prepend_axis_num=1
        )
        return {
            "w": tensor,
            "b": layered,
            "rng": ShardedObject("rng", {"a": 1, "t": fill(torch.ones(2))}, (1,), (0,)),
            "iteration": 5,
        }

    def test_theirs_are_read_and_ours_load(self):
        one_process()
        from megatron.core import dist_checkpointing

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            (self.dir / "theirs").mkdir()
            # This PyTorch has no CUDA; megatron-core asks it all the same.
            with (
                unittest.mock.patch("torch.cuda.synchronize"),
                unittest.mock.patch("torch.cuda.current_device", lambda: "cpu"),
            ):
                dist_checkpointing.save(self.state(lambda t: t), str(self.dir / "theirs"))
        said = probe("dcp-describe", self.dir / "theirs")
        self.assertEqual(
            said["tensors"]["layer.w"]["chunks"][0]["data"], data(torch.arange(12.0)).hex()
        )
        self.assertEqual(said["tensors"]["layers.b"]["shape"], [1, 4])
        self.assertIn("rng/shard_0_1", said["objects"])
        probe("dcp-copy", self.dir / "theirs", self.dir / "ours")
        for name in ("common.pt", "metadata.json"):
            if (self.dir / "theirs" / name).exists():
                (self.dir / "ours" / name).write_bytes((self.dir / "theirs" / name).read_bytes())
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            got = dist_checkpointing.load(self.state(torch.zeros_like), str(self.dir / "ours"))
        self.assertTrue(torch.equal(got["w"], torch.arange(12.0).reshape(3, 4)))
        self.assertTrue(torch.equal(got["b"], torch.arange(4).to(torch.bfloat16)))
        self.assertEqual(got["iteration"], 5)
        self.assertEqual(got["rng"]["a"], 1)
        self.assertTrue(
            set(dist_checkpointing.load_tensors_metadata(str(self.dir / "ours")))
            >= {"layer.w", "layers.b"}
        )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    unittest.main()
