"""Accelerate: `device_map="auto"` looks for memory on devices of a list that has no neuron, and its
singletons are the process's, where each rank thread needs its own."""

import torch.distributed as dist

from .. import _per_rank, _rank, neuron

MEMORY, STATE = "accelerate.utils.modeling", "accelerate.state"


def _own_cores() -> list[int]:
    """A rank, be it a thread or a process, has one."""
    if _rank.current() is not None or dist.is_initialized():
        return [neuron.current_device()]
    return list(range(neuron.device_count()))


def register_memory(module) -> None:
    get_max_memory = module.get_max_memory

    def get_max_memory_of_cores(max_memory=None):
        own = _own_cores()
        cores = {index: neuron.mem_get_info(index)[0] for index in own}
        if max_memory is not None:
            cores = {key: size for key, size in max_memory.items() if isinstance(key, int)}
            if beyond := sorted(cores.keys() - set(own)):
                raise ValueError(f"max_memory: expected cores among {own}, got {beyond}")
            cores = {
                key: module.convert_file_size_to_int(cores[key]) if isinstance(cores[key], str)
                else cores[key] for key in sorted(cores)
            }  # fmt: skip
            max_memory = {k: size for k, size in max_memory.items() if not isinstance(k, int)}
        host = get_max_memory(max_memory)
        return {**cores, **{key: size for key, size in host.items() if not isinstance(key, int)}}

    module.get_max_memory = get_max_memory_of_cores


def register_state(module) -> None:
    for kind in (module.PartialState, module.AcceleratorState, module.GradientState):
        kind._shared_state = _per_rank.Attribute(kind._shared_state, lambda _: {})
