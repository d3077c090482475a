#!/usr/bin/env python3
"""Every kind of bad input with its text and exit code. Environment: TRELLIS, the program."""

import sys
import unittest

from cli_case import QUICKSTART, SOURCE, Case


class BadInput(Case):
    def test_yaml_that_does_not_parse(self):
        self.fails(
            self.trellis("train", self.yaml(lambda t: t + "\nmodel: [1, 2\n")), 2, "broken.yaml:"
        )

    def test_keys_in_an_address_are_refused_and_written_nowhere(self):
        address = "s3://AKIAKEY:hidden/word@bucket/run"
        key = "exp_manager.resume_from_checkpoint"
        file = self.yaml(
            lambda t: t.replace("exp_manager:", f"exp_manager:\n  {key[12:]}: {address}")
        )
        for arguments in (
            ("train", file, f"exp_manager.explicit_log_dir={self.dir / 'run'}"),
            ("train", QUICKSTART, f"{key}={address}"),
            ("checkpoint", "inspect", address),
            ("validate", file, "--json"),
        ):
            result = self.trellis(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            text = result.stdout + result.stderr
            self.assertIn("AWS_SECRET_ACCESS_KEY", text)
            self.assertNotIn("hidden", text)
            self.assertNotIn("AKIAKEY", text)
        self.assertEqual(list(self.dir.iterdir()), [file], "no folder of a run")

    def test_missing_file(self):
        self.fails(self.trellis("train", "nowhere.yaml"), 2, "nowhere.yaml")

    def test_one_of_several_processes(self):
        """A launcher would simulate as many complete jobs into one folder."""
        launchers = {
            "torchrun": ("WORLD_SIZE", "RANK"),
            "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
            "mpirun": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        }
        for launcher, (size, rank) in launchers.items():
            result = self.trellis(
                "simulate",
                QUICKSTART,
                f"exp_manager.explicit_log_dir={self.dir / 'run'}",
                env={size: "2", rank: "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            )
            self.fails(result, 2, "one process", launcher, "started 2", "unset")
            self.assertFalse((self.dir / "run").exists())
        for verb in ("train", "simulate"):
            result = self.trellis(verb, QUICKSTART, env={"WORLD_SIZE": "2", "RANK": "1"})
            self.fails(result, 2, "MASTER_ADDR is not", "RANK=1")
            result = self.trellis(verb, QUICKSTART, env={"PMI_SIZE": "2", "PMI_RANK": "1"})
            self.fails(result, 2, "MPICH", "unset PMI_SIZE")
        # One process is no launcher's group; a batch script of Slurm has these too.
        alone = {
            "WORLD_SIZE": "1",
            "SLURM_NTASKS": "8",
            "SLURM_PROCID": "0",
            "OMPI_COMM_WORLD_SIZE": "1",
        }
        self.assertEqual(
            self.trellis(
                "train", QUICKSTART, "trainer.max_steps=1", "--device", "cpu", env=alone
            ).returncode,
            0,
        )

    def test_misspelt_keys_at_each_level_in_one_pass(self):
        path = self.yaml(
            lambda t: (
                t.replace("\nseed:", "\nsede:")
                .replace(" max_steps:", " max_step:", 1)
                .replace("sequence_parallel:", "sequence_paralel:")
                .replace("micro_batch_size:", "mirco_batch_size:")
                .replace("hidden_size:", "hiden_size:", 1)
                .replace("warmup_steps:", "warmup_step:")
            )
        )
        result = self.trellis("train", path)
        self.fails(
            result,
            2,
            "sede",
            "max_step",
            "sequence_paralel",
            "mirco_batch_size",
            "hiden_size",
            "warmup_step",
        )
        for right in (
            "seed",
            "max_steps",
            "sequence_parallel",
            "micro_batch_size",
            "hidden_size",
            "warmup_steps",
        ):
            self.assertRegex(result.stderr, rf"broken\.yaml:\d+:.*{right}")

    def test_known_key_that_is_not_supported(self):
        self.fails(
            self.train(
                "distributed_strategy.context_parallel_size=2",
                "model.fusions.ring_attention=true",
                "distributed_strategy.pipeline_model_parallel_size=1",
                "model.attention_dropout=0.1",
            ),
            2,
            "does not support",
            "command line:distributed_strategy.context_parallel_size: context parallelism "
            "(context_parallel_size 2) with attention_dropout 0.1: blocks of the ring",
        )

    def test_heads_layers_and_batch_that_do_not_divide(self):
        self.fails(
            self.train(
                "distributed_strategy.tensor_model_parallel_size=8",
                "distributed_strategy.pipeline_model_parallel_size=1",
            ),
            2,
            "num_attention_heads",
            "tensor_model_parallel_size",
        )
        self.fails(
            self.train("model.num_layers=3"), 2, "num_layers", "pipeline_model_parallel_size"
        )
        self.fails(
            self.train("data.global_batch_size=7"), 2, "global_batch_size", "micro_batch_size"
        )

    def test_more_ranks_than_cores(self):
        self.fails(
            self.train("--instance", "trn1.2xlarge"), 2, "8", "trn1.2xlarge", "2", "--instance"
        )

    def test_unknown_instance(self):
        self.fails(self.train("--instance", "trn1.32xlrge"), 2, "trn1.32xlrge", "trn1.32xlarge")

    def test_describe_refuses_what_it_cannot_show(self):
        self.fails(
            self.trellis("describe", "trn2.49xlarge"),
            2,
            "trn2.49xlarge",
            "did you mean trn2.48xlarge?",
        )
        self.fails(
            self.trellis("describe", "trn2u.48xlarge", "--nodes", "3"),
            2,
            "3 nodes",
            "multiple of 4",
        )
        self.fails(self.trellis("describe", "trn2.48xlarge", "--nodes", "0"), 2, "0", "16384 nodes")
        self.fails(
            self.trellis("describe", "trn2.48xlarge", "--topology", "x.png"),
            2,
            "x.png",
            ".svg or .dot",
        )
        self.fails(
            self.trellis("describe", "trn2.48xlarge", "--topology", "/dev/null/place.dot"),
            2,
            "/dev/null/place.dot: cannot write here",
        )
        self.fails(self.trellis("describe", "trn1.32xlarge", "--lnc", "2"), 2, "logical core size")
        self.fails(
            self.trellis("describe", "trn2.48xlarge", "--set", "network.oversubscription=0.5"),
            2,
            "network.oversubscription",
            "0.5",
        )
        self.fails(self.trellis("describe", "--topology", "x.svg"), 2, "which instance?")
        self.fails(
            self.trellis(
                "describe", "trn2.48xlarge", "--topology", "x.svg", env={"PATH": "/nowhere"}
            ),
            2,
            "dot",
            "install the package graphviz",
        )

    def test_data_missing_empty_and_too_short(self):
        self.fails(self.train("data.train_dir=/no/such/place"), 2, "/no/such/place")
        empty = self.dir / "empty.txt"
        empty.write_text("")
        self.fails(self.train(f"data.train_dir={empty}"), 2, "empty")
        short = self.dir / "short.txt"
        short.write_text("too short")
        self.fails(self.train(f"data.train_dir={short}"), 2, "short", "token")

    def test_model_that_does_not_fit(self):
        result = self.trellis(
            "simulate",
            SOURCE / "examples/llama3_8b_trn1.yaml",
            f"exp_manager.explicit_log_dir={self.dir / 'run'}",
            "distributed_strategy.tensor_model_parallel_size=1",
            "distributed_strategy.sequence_parallel=false",
            "trainer.devices=1",
            "data.global_batch_size=1",
        )
        self.fails(
            result,
            3,
            "rank 0",
            "phase",
            "category",
            "capacity" if "capacity" in result.stderr else "of the core's",
            "What would help",
        )

    def test_plugin_missing(self):
        self.fails(self.train(env={"TRELLIS_DEVICE_PLUGIN": "/no/plugin.so"}), 2, "/no/plugin.so")

    def test_report_of_something_else(self):
        (self.dir / "report.json").write_text("{}")
        self.fails(self.trellis("report", self.dir), 2, "trellis.run_report/1")
        self.fails(self.trellis("report", self.dir / "none"), 2, "no such report")

    def test_unknown_verb_and_option(self):
        self.fails(self.trellis("trian"), 2)
        self.fails(self.trellis("train", QUICKSTART, "--devise", "cpu"), 2)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
