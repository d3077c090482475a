#!/usr/bin/env python3
"""`trellis evaluate` against transformers: the loss of answers and the tokens of greedy decoding,
whatever layout computes them; ROUGE against its formulas."""

import collections
import itertools
import json
import math
import re
import signal
import subprocess
import time
import unittest

import torch
import transformers
from cli_case import TRELLIS, CheckedCase
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SEQUENCE, VOCABULARY, END = 256, 264, 256
CONFIG = """
name: evaluated
model_source: {source}
seed: 5
trainer: {{devices: {devices}, max_steps: 2}}
exp_manager: {{explicit_log_dir: log, create_tensorboard_logger: false}}
distributed_strategy:
  tensor_model_parallel_size: {tp}
  pipeline_model_parallel_size: {pp}
  sequence_parallel: {sp}
  kv_replicator: {kv}
data:
  micro_batch_size: 2
  global_batch_size: 8
  train_dir: unused.jsonl
  tokenizer: {{library: byte-level}}
model:
  encoder_seq_length: 256
  max_position_embeddings: 256
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 48
  num_attention_heads: 4
  num_kv_heads: 2
  vocab_size: 264
  make_vocab_size_divisible_by: 1
  layernorm_epsilon: 1.0e-5
  {model}
  optim: {{name: adamw, lr: 2.0e-2}}
model_alignment_strategy: {{sft: {{}}}}
precision: {{type: fp32}}
"""
ONE = dict(tp=1, pp=1, devices=1, sp="false", kv=1)
LAYOUTS = {
    "TP2 SP": dict(tp=2, pp=1, devices=2, sp="true", kv=1),
    "PP2": dict(tp=1, pp=2, devices=2, sp="false", kv=1),
    "TP4 with copies of keys": dict(tp=4, pp=1, devices=4, sp="true", kv=2),
    "TP2 PP2 DP2": dict(tp=2, pp=2, devices=8, sp="true", kv=1),
}
RING = ["model.fusions={ring_attention: true}", "distributed_strategy.context_parallel_size=2"]
RECORDS = [
    {"input": f"{'more ' * (i % 4)}{i} plus {3 * i} is ", "output": f"the number {4 * i}"}
    for i in range(7)
]


def words_of(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def common_subsequence(a, b):
    if not a or not b:
        return 0
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, j in itertools.product(range(len(a)), range(len(b))):
        table[i + 1][j + 1] = (
            table[i][j] + 1 if a[i] == b[j] else max(table[i][j + 1], table[i + 1][j])
        )
    return table[-1][-1]


def rouge(prediction, label):
    """F1 of shared words, shared pairs, and the longest common subsequence (Lin 2004)."""

    def f1(shared, predicted, wanted):
        return 2 * shared / (predicted + wanted) if shared else 0.0

    def pairs(words, n):
        return collections.Counter(zip(*[words[i:] for i in range(n)], strict=False))

    a, b = words_of(prediction), words_of(label)
    scores = {}
    for n in (1, 2):
        x, y = pairs(a, n), pairs(b, n)
        scores[f"rouge{n}"] = f1((x & y).total(), x.total(), y.total())
    return scores | {"rougeL": f1(common_subsequence(a, b), len(a), len(b))}


class EvaluateCase(CheckedCase):
    model = "qkv_linear: true"
    source = "hf"

    def setUp(self):
        super().setUp()
        (self.dir / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in RECORDS))
        torch.manual_seed(3)
        sizes = dict(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=SEQUENCE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=END,
        )
        self.reference = self.make_reference(sizes).eval()
        with torch.no_grad():
            for parameter in self.reference.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.3)
        self.reference.save_pretrained(self.dir / "base")

    def make_reference(self, sizes):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))

    def config(self, **layout):
        path = self.dir / "run.yaml"
        path.write_text(CONFIG.format(**(ONE | layout), model=self.model, source=self.source))
        return path

    def evaluate(self, *args, layout=None):
        """The result, and the answers where they are asked for."""
        answers = self.dir / "answers.json"
        answers.unlink(missing_ok=True)
        result = self.trellis(
            "evaluate",
            self.config(**(layout or {})),
            "--data=held_out.jsonl",
            "--checkpoint=base",
            "--json",
            *args,
        )
        document = json.loads(result.stdout)
        return document, json.loads(answers.read_text()) if answers.exists() else None

    def generated(self, record, tokens):
        prompt = torch.tensor([list(RECORDS[record]["input"].encode())])
        with torch.no_grad():
            ids = self.reference.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                suppress_tokens=list(range(END + 1, VOCABULARY)),  # fill the vocabulary up
            )
        return ids[0, prompt.shape[1] :].tolist()

    def check_greedy_tokens(self):
        wanted = [self.generated(record, 100) for record in range(len(RECORDS))]
        for name in ("TP2 SP", "PP2"):
            _, answers = self.evaluate(
                "--answers=answers.json", "--max-new-tokens=100", layout=LAYOUTS[name]
            )
            self.assertEqual([answer["prediction_ids"] for answer in answers], wanted, name)


class Llama(EvaluateCase):
    def test_greedy_tokens_are_those_of_transformers_in_every_layout(self):
        wanted = [self.generated(record, 200) for record in range(len(RECORDS))]
        self.assertTrue(any(len(ids) == 200 for ids in wanted), "the model must not end at once")
        for name, layout in {"one rank": ONE, **LAYOUTS}.items():
            _, answers = self.evaluate(
                "--answers=answers.json", "--max-new-tokens=200", layout=layout
            )
            for record, answer in enumerate(answers):
                self.assertEqual(answer["prediction_ids"], wanted[record], (name, record))
                self.assertEqual(answer["prompt"], RECORDS[record]["input"])
                self.assertEqual(answer["label"], RECORDS[record]["output"])

    def test_an_answer_ends_with_the_end_of_sequence_token(self):
        with torch.no_grad():
            self.reference.lm_head.weight[END] *= 2
        self.reference.save_pretrained(self.dir / "base")
        _, answers = self.evaluate("--answers=answers.json", "--max-new-tokens=60")
        wanted = [self.generated(record, 60) for record in range(len(RECORDS))]
        self.assertEqual([answer["prediction_ids"] for answer in answers], wanted)
        self.assertTrue(any(ids[-1] == END for ids in wanted), wanted)
        for answer in answers:
            shown = bytes(i for i in answer["prediction_ids"] if i < END)
            self.assertEqual(answer["prediction"], shown.decode(errors="replace"))

    def test_loss_is_that_of_transformers_in_every_layout(self):
        total, tokens = 0.0, 0
        for record in RECORDS:
            prompt = list(record["input"].encode())
            ids = torch.tensor([prompt + list(record["output"].encode()) + [END]])
            labels = ids.clone()
            labels[0, : len(prompt)] = -100
            count = ids.shape[1] - len(prompt)
            with torch.no_grad():
                total += self.reference(ids, labels=labels).loss.item() * count
            tokens += count
        for name, layout in {"one rank": ONE, **LAYOUTS}.items():
            result, _ = self.evaluate(layout=layout)
            self.assertEqual(result["loss_tokens"], tokens, name)
            self.assertAlmostEqual(result["loss"], total / tokens, delta=2e-5 * total / tokens)
            self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), places=6)
        ring, _ = self.evaluate(*RING, layout=LAYOUTS["TP2 PP2 DP2"])
        self.assertAlmostEqual(ring["loss"], total / tokens, delta=2e-5 * total / tokens)

    def test_the_loss_is_that_of_answers_whatever_was_trained(self):
        plain, _ = self.evaluate()
        for strategy in ("{dpo: {kl_beta: 0.2}}", "{orpo: {beta: 0.2}}"):
            paired, _ = self.evaluate(f"model_alignment_strategy={strategy}")
            self.assertEqual(paired["loss"], plain["loss"], strategy)

    def test_sampling_depends_on_the_seed_and_on_nothing_else(self):
        sampled = ("--answers=answers.json", "--max-new-tokens=20", "--temperature=0.9")
        _, first = self.evaluate(*sampled)
        for name, layout in LAYOUTS.items():
            _, same = self.evaluate(*sampled, layout=layout)
            self.assertEqual(first, same, name)
        _, same = self.evaluate(*sampled, "--batch=5")
        self.assertEqual(first, same)
        _, other = self.evaluate(*sampled, "--seed=1")
        self.assertNotEqual(first, other)
        _, likeliest = self.evaluate(*sampled, "--top-k=1")
        _, greedy = self.evaluate("--answers=answers.json", "--max-new-tokens=20")
        self.assertEqual(likeliest, greedy)

    def test_metrics_are_those_of_the_formulas(self):
        result, answers = self.evaluate(
            "--metrics=exact_match,rouge", "--answers=answers.json", "--max-new-tokens=40"
        )
        # A model that has learned nothing shares no word with a label: its answers become labels.
        records = [
            {"input": row["input"], "output": answer["prediction"][: 15 + 5 * i] + " more 1 words"}
            for i, (row, answer) in enumerate(zip(RECORDS, answers, strict=True))
        ]
        records[0]["output"] = "\n" + answers[0]["prediction"].strip() + " "
        (self.dir / "held_out.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
        result, again = self.evaluate(
            "--metrics=exact_match,rouge", "--answers=answers.json", "--max-new-tokens=40"
        )
        self.assertEqual(
            [answer["prediction"] for answer in answers], [answer["prediction"] for answer in again]
        )
        scores = [rouge(answer["prediction"], answer["label"]) for answer in again]
        for name, got in result["rouge"].items():
            mean = sum(score[name] for score in scores) / len(scores)
            self.assertGreater(mean, 0.1, name)
            self.assertLess(mean, 1, name)
            self.assertAlmostEqual(got, mean, places=12)
        self.assertAlmostEqual(result["exact_match"], 1 / len(RECORDS))
        self.assertNotIn("loss", result)

    def test_the_device_gives_the_same_answers_with_their_times(self):
        some = ("--answers=answers.json", "--max-new-tokens=8", "--limit=2")
        numbers, on_cpu = self.evaluate(*some)
        self.assertNotIn("simulated", numbers)
        neuron, two = "--device=neuron", dict(layout=LAYOUTS["TP2 SP"])
        numbers, on_neuron = self.evaluate(*some, neuron, **two)
        self.assertEqual(on_cpu, on_neuron)
        self.assertEqual(len(on_cpu), 2)
        loss, answers = (numbers["simulated"][key] for key in ("loss", "answers"))
        longest = max(len(row["input"]) for row in RECORDS[:2])
        alone = self.trellis(
            *("simulate", self.config(**LAYOUTS["TP2 SP"]), "--generate", "--json", "--batch=2"),
            *(f"--prompt-tokens={longest}", "--max-new-tokens=8"),
        )
        self.assertEqual(answers, json.loads(alone.stdout))
        self.assertEqual((loss["batch"], loss["forward_passes"], loss["data_parallel"]), (2, 1, 1))
        self.assertIn("no published times", loss["exploratory"])
        step = json.loads(self.trellis("simulate", self.config(**ONE), "--json").stdout)
        self.assertLess(loss["forward_pass_ms"], step["simulated"]["step_time_ms"])
        # A larger batch takes longer, and fewer passes; stages are passed one after the other.
        larger, _ = self.evaluate(neuron, "--batch=4", **two)
        self.assertEqual(larger["simulated"].keys(), {"loss"})
        self.assertEqual(larger["simulated"]["loss"]["forward_passes"], 2)
        self.assertGreater(larger["simulated"]["loss"]["forward_pass_ms"], loss["forward_pass_ms"])
        one, _ = self.evaluate(neuron, "--answers=answers.json", "--max-new-tokens=1")
        self.assertNotIn("time_per_output_token_ms", one["simulated"]["answers"])
        stages = self.trellis(
            *("evaluate", self.config(**LAYOUTS["TP2 PP2 DP2"]), "--data=held_out.jsonl"),
            *("--checkpoint=base", neuron),
        )
        self.assertRegex(stages.stdout, r"Simulated loss: 2 × \d.* ms, forward passes of batch 2 ×")

    def test_a_trained_run_is_evaluated(self):
        (self.dir / "unused.jsonl").write_text((self.dir / "held_out.jsonl").read_text() * 3)
        config = self.config(**LAYOUTS["TP2 SP"])
        self.trellis(
            "train",
            config,
            "exp_manager.create_checkpoint_callback=true",
            "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1}",
            "--init-from=base",
            "--device=cpu",
        )
        before, _ = self.evaluate()
        result = self.trellis(
            "evaluate", config, "--data=held_out.jsonl", "--checkpoint=log/checkpoints"
        )
        self.assertIn("7 records", result.stdout)
        loss = float(result.stdout.split("loss ")[1].split()[0])
        self.assertLess(loss, before["loss"])

    def test_an_interrupt_ends_it_with_130(self):
        lines = (self.dir / "held_out.jsonl").read_text()
        (self.dir / "held_out.jsonl").write_text(lines * 100)
        process = subprocess.Popen(
            [TRELLIS, "evaluate", self.config(), "--data=held_out.jsonl", "--checkpoint=base"]
            + ["--answers=answers.json", "--max-new-tokens=200"],
            cwd=self.dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertFalse((self.dir / "answers.json").exists())

    def test_bad_input_is_named(self):
        data = "--data=held_out.jsonl"
        result = self.trellis("evaluate", self.config(), data, returncode=2)
        self.assertIn("--checkpoint: missing", result.stderr)
        (self.dir / "long.jsonl").write_text(json.dumps({"input": "x" * 300, "output": "y"}))
        result = self.trellis(
            "evaluate",
            self.config(),
            "--data=long.jsonl",
            "--checkpoint=base",
            "--metrics=rouge",
            returncode=2,
        )
        self.assertIn("long.jsonl:1: the prompt has 300 tokens", result.stderr)
        result = self.trellis(
            "evaluate",
            self.config(),
            data,
            "--checkpoint=base",
            "--answers=/dev/full/answers.json",
            returncode=2,
        )
        self.assertIn("--answers", result.stderr)
        result = self.trellis(
            "evaluate",
            self.config(),
            data,
            "--checkpoint=base",
            "--metrics=bleu",
            returncode=2,
        )
        self.assertIn("--metrics", result.stderr)


class Mixtral(EvaluateCase):
    model = (
        "rope_theta: 1.0e+6\n  qkv_linear: true\n  moe: {num_experts: 4, top_k: 2, dropless: true}"
    )

    def make_reference(self, sizes):
        return transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
        )

    def test_greedy_tokens_are_those_of_transformers(self):
        wanted = [self.generated(record, 60) for record in range(len(RECORDS))]
        for name in ("TP2 SP", "TP2 PP2 DP2"):
            _, answers = self.evaluate(
                "--answers=answers.json", "--max-new-tokens=60", layout=LAYOUTS[name]
            )
            self.assertEqual([answer["prediction_ids"] for answer in answers], wanted, name)

    def test_the_routers_auxiliary_loss_is_no_part_of_the_loss(self):
        plain, _ = self.evaluate()
        auxiliary = ["model.moe.output_router_logits=true", "model.moe.router_aux_loss_coef=1.0"]
        result, _ = self.evaluate(*auxiliary, layout=LAYOUTS["TP2 SP"])
        self.assertAlmostEqual(result["loss"], plain["loss"], delta=2e-5 * plain["loss"])

    def test_what_would_change_answers_is_refused(self):
        for change, key in (
            ("model.moe.dropless=false", "model.moe.capacity_factor"),
            ("distributed_strategy.expert_model_parallel_size=2", "expert_model_parallel_size"),
        ):
            result = self.trellis(
                "evaluate",
                self.config(devices=2, tp=1, pp=1, sp="false", kv=1),
                change,
                *(["model.moe.capacity_factor=1.0"] if "capacity" in key else []),
                "--data=held_out.jsonl",
                "--checkpoint=base",
                "--metrics=rouge",
                returncode=2,
            )
            self.assertIn(key, result.stderr)


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Chats(CheckedCase):
    """A model that answers as it learned; a tokenizer whose end of a sequence ends no turn."""

    def setUp(self):
        super().setUp()
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        inner = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, eos_token="<|endoftext|>"
        )
        self.tokenizer.add_special_tokens(
            {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
        )
        self.tokenizer.chat_template = CHATML
        self.tokenizer.save_pretrained(self.dir / "tokenizer")
        pairs = (("the vine", "the rose"), ("the wall", "wood"), ("how many", "seven"))
        rows = [
            {"messages": [dict(role="user", content=a), dict(role="assistant", content=b)]}
            for a, b in pairs
        ]
        (self.dir / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = CONFIG.format(**ONE, model="qkv_linear: true", source="hf")
        text = text.replace("{library: byte-level}", "{library: huggingface, type: tokenizer}")
        text = text.replace("encoder_seq_length: 256", "encoder_seq_length: 64")
        text = text.replace("unused.jsonl", "chats.jsonl").replace(
            "vocab_size: 264", "vocab_size: 259"
        )
        text = text.replace("global_batch_size: 8", "global_batch_size: 3")
        text = text.replace("micro_batch_size: 2", "micro_batch_size: 3")
        (self.dir / "chats.yaml").write_text(text)

    def evaluate(self, checkpoint):
        said = self.trellis(
            *("evaluate", "chats.yaml", "--data=chats.jsonl", "--checkpoint", checkpoint),
            *("--metrics=exact_match", "--max-new-tokens=16", "--answers=answers.json", "--json"),
        ).stdout
        return json.loads(said), json.loads((self.dir / "answers.json").read_text())

    def test_a_perfect_model_and_its_export(self):
        self.trellis(
            *("train", "chats.yaml", "trainer.max_steps=200", "--device=cpu"),
            "exp_manager.create_checkpoint_callback=true",
            "exp_manager.checkpoint_callback_params={monitor: step, mode: max, save_top_k: 1}",
        )
        end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        result, answers = self.evaluate("log/checkpoints")
        self.assertEqual(result["exact_match"], 1.0, answers)
        self.assertEqual([answer["label"] for answer in answers], ["the rose", "wood", "seven"])
        self.assertIn(f"{end} (which ends the chats' answers)", result["stop_tokens"])
        (checkpoint,) = (self.dir / "log/checkpoints").glob("*-last.ckpt")
        # The tokenizer is the training's, or the one that is named.
        for out, more in (("a", ()), ("b", ("--tokenizer", "tokenizer"))):
            self.trellis("checkpoint", "export-hf", checkpoint, "--out", out, *more)
            model = transformers.AutoModelForCausalLM.from_pretrained(self.dir / out)
            prompt = self.tokenizer.apply_chat_template(
                [dict(role="user", content="the vine")],
                add_generation_prompt=True,
                return_tensors="pt",
            )
            got = model.generate(**prompt, max_new_tokens=40, do_sample=False)
            said = got[0, prompt["input_ids"].shape[1] :].tolist()
            self.assertEqual(self.tokenizer.decode(said), "the rose<|im_end|>")
            ends = {self.tokenizer.eos_token_id, end}
            for file in ("config.json", "generation_config.json"):
                ids = json.loads((self.dir / out / file).read_text())["eos_token_id"]
                self.assertEqual(set(ids), ends)
        # Other ends of generation_config.json count too.
        stop = self.tokenizer("r")["input_ids"][0]
        file = self.dir / "a" / "generation_config.json"
        file.write_text(json.dumps({"eos_token_id": [stop]}))
        result, answers = self.evaluate("a")
        self.assertEqual(answers[0]["prediction"], "the ")
        self.assertIn("a/generation_config.json", result["stop_tokens"])
        (self.dir / "tokenizer").rename(self.dir / "moved")
        said = self.trellis("checkpoint", "export-hf", checkpoint, "--out", "c").stderr
        self.assertIn("name no end-of-sequence token", said)
        config = json.loads((self.dir / "c" / "config.json").read_text())
        self.assertIsNone(config["eos_token_id"])

    def test_numbers_that_are_none(self):
        for option in ("--temperature=nan", "--top-p=nan", "--temperature=inf"):
            said = self.trellis(
                *("evaluate", "chats.yaml", "--data=chats.jsonl", option), returncode=2
            )
            self.assertIn("expected a number", said.stderr)


class SlidingWindow(EvaluateCase):
    model = "sliding_window_size: 24\n  fusions: {flash_attention: true}"

    def make_reference(self, sizes):
        return transformers.MistralForCausalLM(
            transformers.MistralConfig(**sizes, sliding_window=24, head_dim=8)
        )

    def test_greedy_tokens_are_those_of_transformers(self):
        self.check_greedy_tokens()


class Qwen2(EvaluateCase):
    model = "model_type: qwen2"

    def make_reference(self, sizes):
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))

    def test_greedy_tokens_are_those_of_transformers(self):
        self.check_greedy_tokens()


class Olmo2(EvaluateCase):
    model = "model_type: olmo2"

    def make_reference(self, sizes):
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes))

    def test_greedy_tokens_are_those_of_transformers(self):
        self.check_greedy_tokens()


if __name__ == "__main__":
    unittest.main()
