"""DistributedDataParallel without data: it reads back what ranks sent each other about their
parameters. In shape-only mode there is nothing to read, and ranks are of one program."""

import torch.distributed as dist

from .. import neuron

MODULE = "torch.nn.parallel.distributed"


def _has_no_data(parameters) -> bool:
    on_device = any(parameter.device.type == neuron.NAME for parameter in parameters)
    return on_device and neuron.session_options()["shape_only"]


def register(module) -> None:
    verify, rebuild = module._verify_param_shape_across_processes, dist.Reducer._rebuild_buckets

    def verify_where_there_is_data(process_group, tensors, logger=None):
        return True if _has_no_data(tensors) else verify(process_group, tensors, logger)

    def rebuild_where_there_is_data(reducer):
        """Else buckets stay in the order of the parameters, not that of their gradients."""
        if neuron.is_initialized() and neuron.session_options()["shape_only"]:
            return False
        return rebuild(reducer)

    module._verify_param_shape_across_processes = verify_where_there_is_data
    dist.Reducer._rebuild_buckets = rebuild_where_there_is_data
