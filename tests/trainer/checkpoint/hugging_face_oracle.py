"""Folders of transformers are read as native tensors and written again, byte by byte."""

import filecmp
import json
import os
import pathlib
import sys
import unittest

import torch
import transformers
from probe import Case, probe
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "models"))
from transformers_test import gpt2_weights  # noqa: E402

SIZES = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
GPT2 = dict(vocab_size=97, n_positions=40, n_embd=48, n_layer=2, n_head=6)


def raw(tensor):
    flat = tensor.detach().contiguous().flatten()
    return bytes(flat.view(torch.uint8).numpy()).hex()


def middle(tensor):
    for axis, size in enumerate(tensor.shape):
        tensor = tensor.narrow(axis, size // 3, size // 2)
    return tensor


def make(kind, config, dtype=torch.float32):
    torch.manual_seed(3)
    model = kind(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def llama(dtype=torch.float32, **changes):
    return make(
        transformers.LlamaForCausalLM, transformers.LlamaConfig(**{**SIZES, **changes}), dtype
    )


def gpt2(**changes):
    return make(transformers.GPT2LMHeadModel, transformers.GPT2Config(**{**GPT2, **changes}))


def stored(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


class HubCase(Case):
    def save(self, model, name="hub", **options):
        model.save_pretrained(self.dir / name, **options)
        return self.dir / name

    def check_read(self, folder, expected):
        got = probe("dump", folder)
        self.assertEqual(set(got), set(expected))
        for key, tensor in expected.items():
            self.assertEqual(got[key]["shape"], list(tensor.shape), key)
            self.assertEqual("torch." + got[key]["dtype"], str(tensor.dtype), key)
            self.assertEqual(got[key]["data"], raw(tensor), key)
            self.assertEqual(got[key]["middle"], raw(middle(tensor)), key)

    def check_round_trip(self, folder, max_bytes=5 * 10**9):
        """The files of weights and the index are those of save_pretrained, byte by byte."""
        out = self.dir / "out"
        probe("export", folder, folder / "config.json", out, max_bytes)
        files = sorted(p.name for p in folder.glob("model*"))
        self.assertEqual(files, sorted(p.name for p in out.glob("model*")))
        _, differ, errors = filecmp.cmpfiles(folder, out, files, shallow=False)
        self.assertEqual((differ, errors), ([], []))
        return out


class Read(HubCase):
    def test_llama(self):
        model = llama()
        self.check_read(self.save(model), dict(model.state_dict()))

    def test_shards_and_another_head_dim(self):
        model = llama(torch.bfloat16, head_dim=16)
        folder = self.save(model, max_shard_size="40KB")
        self.assertGreater(len(list(folder.glob("*.safetensors"))), 3)
        self.check_read(folder, dict(model.state_dict()))

    def test_tied_embeddings(self):
        model = llama(tie_word_embeddings=True)
        expected = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
        self.check_read(self.save(model), expected)

    def test_gpt2_is_transposed_and_per_head(self):
        model = gpt2()
        self.check_read(self.save(model), gpt2_weights(dict(model.named_parameters())))

    def test_gpt2_of_the_hub_without_prefix_with_masks(self):
        model = gpt2()
        folder = self.save(model)
        tensors = {
            name.removeprefix("transformer."): tensor for name, tensor in stored(folder).items()
        }
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 40, 40)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.check_read(folder, gpt2_weights(dict(model.named_parameters())))

    def test_pickled_weights(self):
        model = llama()
        folder = self.save(model)
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        self.check_read(folder, dict(model.state_dict()))
        names = list(model.state_dict())
        index = {}
        for part in range(2):
            file = f"pytorch_model-{part}.bin"
            tensors = {name: model.state_dict()[name] for name in names[part::2]}
            torch.save(tensors, folder / file)
            index.update(dict.fromkeys(tensors, file))
        (folder / "pytorch_model.bin").unlink()
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
        self.check_read(folder, dict(model.state_dict()))

    def test_mixtral_stacks_its_experts(self):
        config = transformers.MixtralConfig(**SIZES, num_local_experts=3)
        folder = self.save(make(transformers.MixtralForCausalLM, config))
        hub, got = stored(folder), probe("dump", folder)
        path = "model.layers.1.block_sparse_moe.experts."
        for name, parts in (("gate_up_proj", ("w1", "w3")), ("down_proj", ("w2",))):
            expected = torch.cat([hub[f"{path}{i}.{w}.weight"] for i in range(3) for w in parts])
            key = f"model.layers.1.mlp.expert_mlps.mlp_op.{name}.weight"
            self.assertEqual(got[key]["shape"], list(expected.shape))
            self.assertEqual(got[key]["data"], raw(expected))
            self.assertEqual(got[key]["middle"], raw(middle(expected)))
        out = self.dir / "out"
        probe("export", folder, folder / "config.json", out, 10**9)
        self.assertTrue(filecmp.cmp(folder / "model.safetensors", out / "model.safetensors", False))


class RoundTrip(HubCase):
    def test_llama(self):
        self.check_round_trip(self.save(llama()))

    def test_shards_of_every_size(self):
        for size in (10_000, 15_361, 19_000, 60_000, 100_000):
            with self.subTest(size):
                folder = self.save(llama(), f"hub{size}", max_shard_size=size)
                out = self.check_round_trip(folder, size)
                for file in out.iterdir():
                    file.unlink()
                out.rmdir()

    def test_mistral_bf16(self):
        config = transformers.MistralConfig(**SIZES, sliding_window=7)
        model = make(transformers.MistralForCausalLM, config, torch.bfloat16)
        self.check_round_trip(self.save(model, max_shard_size=30_000), 30_000)

    def test_qwen3(self):
        config = transformers.Qwen3Config(**SIZES, head_dim=16)
        model = make(transformers.Qwen3ForCausalLM, config, torch.bfloat16)
        self.check_round_trip(self.save(model, max_shard_size=30_000), 30_000)

    def test_qwen2_tied(self):
        config = transformers.Qwen2Config(**SIZES, tie_word_embeddings=True)
        model = make(transformers.Qwen2ForCausalLM, config, torch.bfloat16)
        self.check_round_trip(self.save(model, max_shard_size=30_000), 30_000)

    def test_olmo2(self):
        model = make(transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**SIZES))
        self.check_round_trip(self.save(model, max_shard_size=30_000), 30_000)

    def test_gpt2_tied(self):
        self.check_round_trip(self.save(gpt2(), max_shard_size=40_000), 40_000)

    def test_another_type(self):
        folder = self.save(llama())
        probe("export", folder, folder / "config.json", self.dir / "out", 10**9, "bfloat16")
        for name, tensor in stored(self.dir / "out").items():
            self.assertTrue(torch.equal(tensor, stored(folder)[name].bfloat16()), name)

    def test_padding_of_the_vocabulary_is_cut(self):
        folder = self.save(llama())
        config = json.loads((folder / "config.json").read_text())
        (self.dir / "config.json").write_text(json.dumps({**config, "vocab_size": 90}))
        probe("export", folder, self.dir / "config.json", self.dir / "out", 10**9)
        got = stored(self.dir / "out")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            self.assertTrue(torch.equal(got[name], stored(folder)[name][:90]))

    def test_an_interrupted_export_goes_on(self):
        folder = self.save(llama(), max_shard_size=30_000)
        arguments = ("export", folder, folder / "config.json", self.dir / "out", 30_000)
        probe(*arguments)
        out = self.dir / "out"
        shards = sorted(out.glob("*.safetensors"))
        kept = shards[0].stat().st_mtime_ns
        self.refused(*arguments, texts=["expected an empty folder"])
        # As it is when it stopped in the second file: the marker, and one complete file.
        marker = self.interrupted(arguments)
        (out / "export-unfinished").write_text(marker)
        (out / "model.safetensors.index.json").unlink()
        (out / "config.json").unlink()
        for shard in shards[1:]:
            shard.unlink()
        probe(*arguments)
        self.assertEqual(shards[0].stat().st_mtime_ns, kept)
        self.assertEqual(set(stored(out)), set(stored(folder)))
        self.assertFalse((out / "export-unfinished").exists())
        (out / "export-unfinished").write_text("other")
        self.refused(*arguments, texts=["another export was interrupted"])

    def interrupted(self, arguments):
        """The marker that the same export leaves when it cannot write its second file."""
        other = self.dir / "other"
        other.mkdir()
        (other / sorted((self.dir / "hub").glob("*.safetensors"))[1].name).mkdir()
        with self.assertRaises(RuntimeError):
            probe(*arguments[:3], other, *arguments[4:])
        return (other / "export-unfinished").read_text()


class BadInput(HubCase):
    def change(self, folder, name, **changes):
        file = folder / name
        content = json.loads(file.read_text())
        content.update(changes)
        file.write_text(json.dumps(content))

    def test_missing_shard(self):
        folder = self.save(llama(), max_shard_size=30_000)
        sorted(folder.glob("*.safetensors"))[1].unlink()
        self.refused("dump", folder, texts=["model-00002-of", "there is no such file", "exit 2"])

    def test_names_that_leave_the_folder(self):
        folder = self.save(llama(), max_shard_size=30_000)
        index = folder / "model.safetensors.index.json"
        for path in ("../other.safetensors", "/etc/passwd", "a/../../b"):
            content = json.loads(index.read_text())
            content["weight_map"]["model.norm.weight"] = path
            index.write_text(json.dumps(content))
            self.refused("dump", folder, texts=["model.norm.weight", "exit 2"])

    def test_a_shard_without_its_tensor(self):
        folder = self.save(llama(), max_shard_size=30_000)
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        content["weight_map"]["model.norm.weight"] = content["weight_map"]["lm_head.weight"]
        index.write_text(json.dumps(content))
        self.refused("dump", folder, texts=["has no tensor model.norm.weight"])

    def test_other_shapes(self):
        folder = self.save(llama())
        self.change(folder, "config.json", intermediate_size=81)
        self.refused(
            "dump",
            folder,
            texts=["mlp.up_proj.weight: expected the shape [81, 48]", "got [80, 48]"],
        )

    def test_other_architectures(self):
        folder = self.save(llama(attention_bias=True))
        self.refused("dump", folder, texts=["q_proj.bias", "of another architecture"])
        self.change(folder, "config.json", model_type="gemma")
        self.refused("dump", folder, texts=["model_type: expected llama", 'got "gemma"'])
        self.change(folder, "config.json", model_type="gpt2")
        self.refused("dump", folder, texts=["n_layer: this key is required and missing"])

    def test_missing_tensors_are_all_named(self):
        folder = self.save(llama())
        tensors = stored(folder)
        del tensors["model.norm.weight"], tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.refused("dump", folder, texts=["model.norm.weight", "lm_head.weight"])

    def test_nothing_there(self):
        self.refused("dump", self.dir, texts=["expected model.safetensors"])
        folder = self.save(llama())
        os.unlink(folder / "config.json")
        self.refused("dump", folder, texts=["config.json: there is no such file"])

    def test_pickles_run_nothing(self):
        folder = self.save(llama())
        (folder / "model.safetensors").unlink()

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(self_dir / "evil"),)

        self_dir = self.dir
        torch.save({"model.norm.weight": Evil()}, folder / "pytorch_model.bin")
        self.refused("dump", folder, texts=["pytorch_model.bin"])
        self.assertFalse((self.dir / "evil").exists())

    def test_exports_that_would_lose_something(self):
        folder = self.save(llama())
        self.change(folder, "config.json", tie_word_embeddings=True)
        arguments = ("export", folder, folder / "config.json", self.dir / "out", 10**9)
        self.refused(*arguments, texts=["lm_head.weight differs", "tie_word_embeddings"])
        config = json.loads((folder / "config.json").read_text())
        smaller = {**config, "tie_word_embeddings": False, "num_hidden_layers": 1}
        (self.dir / "config.json").write_text(json.dumps(smaller))
        self.refused(
            "export",
            folder,
            self.dir / "config.json",
            self.dir / "out",
            10**9,
            texts=["model.layers.1.mlp.up_proj.weight", "would be lost"],
        )


if __name__ == "__main__":
    unittest.main()
