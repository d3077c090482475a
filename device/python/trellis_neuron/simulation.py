"""Simulated time of a training loop: `with simulate("trn2.48xlarge") as run: …`, then
`print(run)`."""

import json
import pathlib
import sys
import threading
import warnings
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import _processes, distributed, neuron, ranks, run_report
from ._index import ops as _ops
from .report import RunReport, StepLog

_active: "Simulation | None" = None


class _OptimizerSteps:
    """Notices the end of the outermost optimizer.step() of a thread: one that wraps others ends a
    training step, those inside do not."""

    def __init__(self, ended):
        self._ended, self._local = ended, threading.local()
        self.hooks = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def _before(self, optimizer, *_):
        under_way = self._local.__dict__.setdefault("under_way", [])
        if optimizer in under_way:  # its last step() raised an error
            del under_way[under_way.index(optimizer) :]
        under_way.append(optimizer)

    def _after(self, optimizer, *_):
        under_way = self._local.__dict__.setdefault("under_way", [])
        if optimizer in under_way:
            del under_way[under_way.index(optimizer) :]
        if not under_way:
            self._ended()


class Simulation:
    """A context manager; see simulate(). Inside it and after it: step(), report(), as_dict(),
    write_trace(), str()."""

    def __init__(
        self, options: dict[str, Any], steps: str, tokens_per_step: int | None, keep_steps: int
    ):
        if steps not in ("optimizer", "manual"):
            raise ValueError(f'simulate: steps: expected "optimizer" or "manual", got {steps!r}')
        if keep_steps < 1:
            raise ValueError(f"simulate: keep_steps: expected at least 1, got {keep_steps}")
        self._options, self._steps, self._tokens = options, steps, tokens_per_step
        self._hooks: list[Any] = []
        self._forwarded = threading.local()
        self._parameters = 0  # of the first module that ran, at most over the ranks
        self._places: set[str] = set()  # devices of the modules that ran
        self._log = StepLog(keep_steps)
        self._result: RunReport | None = None
        self._processes: _processes.Processes | None = None
        # Of all ranks that were processes when their group ended.
        self._accounts: tuple[dict[str, Any], dict[str, Any]] | None = None

    def __enter__(self) -> "Simulation":
        global _active
        if _active is not None:
            raise RuntimeError("simulate: another simulation is active in this process")
        _configure(self._options)
        _ops.forget_steps()
        _ops.discard_step()
        for index in range(neuron.device_count()):
            torch.accelerator.reset_peak_memory_stats(index)
        self._hooks.append(register_module_forward_pre_hook(self._before_forward))
        if self._steps == "optimizer":
            self._hooks += _OptimizerSteps(self.step).hooks
        distributed.before_end.append(self._before_ranks_end)
        _active = self
        self._say_step()
        return self

    def __exit__(self, error_type, *_):
        global _active
        _active = None
        _ops.say_activity("")
        for hook in self._hooks:
            hook.remove()
        distributed.before_end.remove(self._before_ranks_end)
        if error_type is None:
            if not len(self._log) and ranks.current() is None:
                self.step()  # a body without steps is one step
            self._result = self._gather(of_all=True)
            self._warn_if_elsewhere()
        _ops.discard_step()
        return False

    def _before_ranks_end(self) -> None:
        """destroy_process_group() inside the `with`: the processes are still there to give what
        they have. Not while an error ends this one: the others may wait for it elsewhere."""
        if not _processes.are_ranks() or sys.exc_info()[1] is not None:
            return
        if not len(self._log):
            self.step()  # a body without steps is one step
        if self._processes is not None:
            self._accounts, self._processes = self._processes.accounts(), None

    def _warn_if_elsewhere(self) -> None:
        places = ", ".join(sorted(self._places))
        if places and not self._result.ranks():
            warnings.warn(
                f"simulate(): nothing ran on neuron: the modules of this program ran on {places}. "
                'Move model and batches to torch.device("neuron"); a library that chooses its '
                "device itself must be imported after trellis_neuron",
                stacklevel=3,
            )

    def step(self) -> None:
        """Ends a training step of the calling thread's ranks. In run_ranks(), and where ranks are
        processes, every rank must end each step."""
        _ops.end_step(0)
        if (threads := ranks.current()) is None:
            self._simulate()
            return
        threads.barrier()
        if ranks.current_rank() == 0:
            self._simulate()
        threads.barrier()

    def _simulate(self) -> None:
        if self._processes is None and _processes.are_ranks():
            self._processes = _processes.Processes()
        # The same number: equal steps are equal texts.
        self._log.add(self._processes.simulate_step() if self._processes else _ops.simulate_step(0))
        self._say_step()

    def _say_step(self) -> None:
        """On stderr, whenever nothing was written there for 1.5 s."""
        if _active is self:
            _ops.say_activity(f"simulate(): the program runs step {len(self._log)}")

    def _before_forward(self, module, *_):
        """What comes before the first forward pass builds the model: it belongs to no step."""
        if not getattr(self._forwarded, "seen", False):
            self._forwarded.seen = True
            _ops.discard_step()
            parameters = list(module.parameters())
            self._places |= {parameter.device.type for parameter in parameters[:1]}
            self._parameters = max(self._parameters, sum(p.numel() for p in parameters))

    def _gather(self, of_all: bool = False) -> RunReport:
        """of_all: with ranks that are processes, together with the others."""
        if of_all and self._processes:
            memory, portability = self._processes.accounts()
        elif self._accounts is not None:
            memory, portability = self._accounts
        else:
            memory = json.loads(_ops.memory_report())
            portability = json.loads(_ops.portability_report())
        return RunReport(
            session=neuron.session_options(),
            steps=self._log,
            memory=memory,
            portability=portability,
            tokens_per_step=self._tokens,
        )

    # ── results ──

    def report(self) -> RunReport:
        """What was simulated so far; inside the `with` it is made again at each call."""
        return self._result if self._result is not None else self._gather()

    def as_dict(self) -> dict[str, Any]:
        return self.report().as_dict()

    def __str__(self) -> str:
        return str(self.report())

    def save(
        self, folder, *, name: str = "python", tokens_per_step: int | None = None
    ) -> pathlib.Path:
        """Writes report.json and trace.pftrace, which `trellis report`, `diff`, `gate` and `cost`
        read. tokens_per_step: over all ranks; None: the number that simulate() got. Returns the
        folder. Raises ValueError when neither has it, RuntimeError when no step ended."""
        tokens = tokens_per_step if tokens_per_step is not None else self._tokens
        if tokens is None:
            raise ValueError(
                "save: how many tokens has a step? Pass tokens_per_step to simulate() or save()"
            )
        folder = pathlib.Path(folder)
        content = run_report.run_report(
            self.report(), name=name, parameters=self._parameters, tokens_per_step=tokens
        )
        run_report.write(folder, content)
        self.write_trace(folder / "trace.pftrace")
        return folder

    def write_trace(self, path, format: str = "perfetto") -> None:
        """The timeline of the last simulated step; format: "perfetto" (ui.perfetto.dev) or
        "text". Where ranks are processes, rank 0 has it."""
        _ops.write_trace(str(path), format)


def simulate(
    instance: str | None = None,
    nodes: int | None = None,
    *,
    world_size: int | None = None,
    shape_only: bool | None = None,
    logical_core_size: int | None = None,
    steps: str = "optimizer",
    tokens_per_step: int | None = None,
    keep_steps: int = 256,
) -> Simulation:
    """What the body does on `neuron` takes simulated time on this machine. What is None is as the
    environment says (TRELLIS_INSTANCE, NEURON_RT_NUM_CORES, …), else as the default machine, one
    trn2.48xlarge.

    steps: "optimizer", a training step ends with each optimizer.step(), or "manual", at each
    run.step(). What comes before the first module's forward pass belongs to no step.
    tokens_per_step, over all ranks: adds tokens/s to the report. keep_steps: the report has the
    last so many steps one by one, and of earlier ones their number and times together. Raises
    RuntimeError when the machine differs from the present one while tensors are alive on it.
    """
    options = {
        "instance": instance,
        "nodes": nodes,
        "world_size": world_size,
        "shape_only": shape_only,
        "logical_core_size": logical_core_size,
    }
    return Simulation(options, steps, tokens_per_step, keep_steps)


def _configure(options: dict[str, Any]) -> None:
    """Leaves a session that is already what was asked for: models made before the `with` stay
    usable."""
    if options["world_size"] is None and _processes.are_ranks():  # each process has its own core
        options = {**options, "world_size": neuron.session_options()["world_size"]}
    _ops.configure_unless_so(neuron._device_options(**options, record=True, estimate_unknown=True))
