"""Hugging Face models train on neuron as on the CPU: unmodified loops, random weights from a
configuration."""

import tempfile
import unittest

import torch
import trellis_neuron  # noqa: F401
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    get_linear_schedule_with_warmup,
)

VOCABULARY, BATCH, SEQUENCE, STEPS = 128, 2, 32, 20
torch.set_num_threads(1)  # such small operators are not shared out


def llama():
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def gpt2():
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    )


def batches(steps):
    """Two batches alternately: so few can be learned."""
    generator = torch.Generator().manual_seed(7)
    two = [torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=generator) for _ in range(2)]
    return [two[step % 2] for step in range(steps)]


def train(model, device, steps=STEPS, autocast=None, start=0, optimizer=None, schedule=None):
    """The loop of a user: nothing in it knows the device but its name. Returns losses, optimizer
    and schedule."""
    model = model.to(device).train()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = schedule or get_linear_schedule_with_warmup(optimizer, 2, STEPS)
    losses = []
    torch.manual_seed(2)  # dropout draws on the device: equal seeds, equal numbers
    for ids in batches(STEPS)[start : start + steps]:
        ids = ids.to(device)
        with torch.autocast(
            torch.device(device).type, dtype=torch.bfloat16, enabled=autocast is not None
        ):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, optimizer, schedule


class SameAsCpu(unittest.TestCase):
    def compare(self, make, tolerance, **options):
        expected, *_ = train(make(), "cpu", **options)
        got, *_ = train(make(), "neuron", **options)
        self.assertLess(expected[-1], expected[0], "the model learns")
        for step, (a, b) in enumerate(zip(expected, got)):
            self.assertAlmostEqual(
                a, b, delta=tolerance, msg=f"step {step}: cpu {expected}, neuron {got}"
            )

    def test_llama(self):
        self.compare(llama, 1e-6)

    def test_gpt2(self):
        self.compare(gpt2, 1e-6)

    def test_llama_autocast(self):
        # bfloat16 keeps 8 bits: operators that autocast lists differently for the two devices round
        # at different places.
        self.compare(llama, 2e-3, autocast=torch.bfloat16)


class Checkpoints(unittest.TestCase):
    def test_resumed_run_equals_uninterrupted_run(self):
        whole, *_ = train(
            llama(), "neuron", steps=6
        )  # Llama has no dropout: its steps need no generator's state
        model = llama()
        first, optimizer, schedule = train(model, "neuron", steps=3)
        with tempfile.NamedTemporaryFile() as file:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                },
                file.name,
            )
            state = torch.load(file.name)
        self.assertEqual(next(iter(state["model"].values())).device.type, "neuron")
        model = llama().to("neuron")
        model.load_state_dict(state["model"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = get_linear_schedule_with_warmup(optimizer, 2, STEPS)
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        rest, *_ = train(model, "neuron", steps=3, start=3, optimizer=optimizer, schedule=schedule)
        self.assertEqual(first + rest, whole)

    def test_saved_model_loads_on_the_cpu(self):
        model = gpt2().to("neuron").eval()
        ids = batches(1)[0]
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model.save_pretrained(folder)
            logits = GPT2LMHeadModel.from_pretrained(folder).eval()(ids).logits
            self.assertTrue(torch.equal(model(ids.to("neuron")).logits.cpu(), logits))


class Generation(unittest.TestCase):
    def test_greedy_tokens_equal_the_cpus(self):
        model = llama().eval()
        prompt = batches(1)[0][:1, :5]
        expected = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
        got = model.to("neuron").generate(
            prompt.to("neuron"), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        self.assertEqual(got.cpu().tolist(), expected.tolist())


if __name__ == "__main__":
    unittest.main()
