"""TRL's own trainers over transformers' Llama, with the weights, records and order of a run."""

import collections
import pathlib
import tempfile

import torch
from alignment_case import BATCH, EOS, STEPS, S, model_of, order
from datasets import Dataset
from peft_case import adapted_model_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

torch.set_num_threads(1)  # models are small, and cores have other tests
REWARDS = [f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins")]
PAIRS = [*REWARDS, "logps/chosen", "logps/rejected"]
ODDS = ["nll_loss", "log_odds_ratio", "log_odds_chosen"]


def tokenizer():
    """A token per byte, and one that ends a text."""
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    text = Tokenizer(models.BPE(vocab={**letters, "<end>": EOS}, merges=[]))
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=text, eos_token="<end>", pad_token="<end>")


def noting(trainer):
    """A kind of `trainer` that keeps loss and metrics of each batch as they are."""

    class Noting(trainer):
        def compute_loss(self, *args, **more):
            loss = super().compute_loss(*args, **more)
            metrics = getattr(self, "_stored_metrics", None) or self._metrics
            self.batches.append(
                {"loss": loss.item()}
                | {name: values[-1] for name, values in metrics["train"].items() if values}
            )
            return loss

    return Noting


class TrlTrainer:
    """`names`: the metrics that are compared. A batch may be cut as micro-batches cut it."""

    kind, config, names, columns = SFTTrainer, SFTConfig, [], {"input": "prompt"}
    micro_batch = BATCH

    def __init__(self, weights, records, beta, targets=None):
        """`targets`: of adapters; else all weights are trained."""
        self.targets, self.records, self.more = targets, records, self.options(beta)
        self.model = (
            adapted_model_of(weights, target_modules=targets) if targets else model_of(weights)
        )

    def options(self, beta):
        return {"beta": beta}

    def rows(self):
        places = [place for step in order(len(self.records), STEPS) for place in step]
        return Dataset.from_list(
            [
                {new: self.records[place][old] for old, new in self.columns.items()}
                for place in places
            ]
        )

    def arguments(self, folder):
        return self.config(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=STEPS,
            max_steps=STEPS,
            per_device_train_batch_size=self.micro_batch,
            gradient_accumulation_steps=BATCH // self.micro_batch,
            train_sampling_strategy="sequential",
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            max_length=S,
            **self.more,
        )

    def train(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer = noting(self.kind)(
                self.model,
                args=self.arguments(pathlib.Path(folder)),
                train_dataset=self.rows(),
                processing_class=tokenizer(),
                **self.models(),
            )
            trainer.batches = []
            trainer.train()
        return self.steps(trainer.batches)

    def models(self):
        return {}

    def steps(self, batches):
        """Means over the micro-batches of a step."""
        count = BATCH // self.micro_batch
        assert len(batches) == count * STEPS, len(batches)
        steps = []
        for first in range(0, len(batches), count):
            sums = collections.Counter()
            for batch in batches[first : first + count]:
                sums.update({name: batch[name] for name in ["loss", *self.names]})
            steps.append({name: sums[name] / count for name in ["loss", *self.names]})
        return steps


class Sft(TrlTrainer):
    columns = {"input": "prompt", "output": "completion"}

    def options(self, beta):
        return {"completion_only_loss": True, "packing": False, "loss_type": "nll"}


class Dpo(TrlTrainer):
    kind, config, names = DPOTrainer, DPOConfig, PAIRS
    columns = {name: name for name in ("prompt", "chosen", "rejected")}

    def models(self):
        """With adapters the reference is the model without them."""
        return {} if self.targets else {"ref_model": model_of(dict(self.model.state_dict()))}


class Orpo(TrlTrainer):
    """Its NLL is the mean over a micro-batch's tokens: of one pair, as the run's."""

    kind, config, names = ORPOTrainer, ORPOConfig, [*PAIRS, *ODDS]
    columns, micro_batch = Dpo.columns, 1

    def options(self, beta):
        return {"beta": beta, "max_completion_length": S}
