"""DTensor under ranks as threads: the tracker of its random numbers, and the operators that
loss_parallel() and context parallelism exchange, are one for the process; a rank has its own."""

import copy
import sys
import types

import torch

from .. import _per_rank, _rank, neuron

RANDOM, DISPATCH = "torch.distributed.tensor._random", "torch.distributed.tensor._dispatch"


def register_random(module: types.ModuleType) -> None:
    """Others read the tracker as an attribute of the module. manual_seed() in it makes the
    process's, which is each rank's first one."""

    def of_rank(_):
        process = vars(module)["_rng_tracker"]
        if process is None:
            return None
        tracker = copy.copy(process)
        tracker._device = torch.device(neuron.NAME, _rank.current())
        return tracker

    class Tracker(_per_rank.Attribute):
        def __get__(self, holder, kind=None):
            if _per_rank.values() is None:
                return vars(module)["_rng_tracker"]
            return super().__get__(holder, kind)

        def __set__(self, holder, value):
            if _per_rank.values() is None:
                vars(module)["_rng_tracker"] = value
            else:
                super().__set__(holder, value)

    class Module(types.ModuleType):
        _rng_tracker = Tracker(None, of_rank)

    module.__class__ = Module


def register_dispatch(module: types.ModuleType) -> None:
    """There is one dispatcher. It may have been made before this package came."""
    handlers: dict = {}
    api = sys.modules.get("torch.distributed.tensor._api")
    if (kind := getattr(api, "DTensor", None)) is not None:
        handlers = vars(kind._op_dispatcher).pop("_custom_op_handlers")
    module.OpDispatcher._custom_op_handlers = _per_rank.Attribute(handlers, dict)
