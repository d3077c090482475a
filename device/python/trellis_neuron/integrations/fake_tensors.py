"""Fake tensors: what the compiler's front end knows of the device."""

import torch

from .. import ranks

MODULE, OPERATORS = "torch._subclasses.fake_tensor", "torch._subclasses.fake_impls"


def register(module) -> None:
    """PyTorch caches what an operation returns for all threads, with the device of the thread that
    came first. A rank's device is its own, so it caches nothing."""
    mode = module.FakeTensorMode
    init = mode.__init__

    def init_without_cache(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if ranks.current() is not None:
            self.cache_enabled = False

    mode.__init__ = init_without_cache


def register_operators(module) -> None:
    """Fused attention as the device computes it: PyTorch's own answer has seeds of a dropout that
    the device does not keep, and gradients with other strides. Shapes: batch, heads, length, size;
    statistics and gradients lie as batch, length, heads, size."""
    attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    backward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default

    def heads_last(like, sizes, dtype):
        batch, heads, length, *size = sizes
        return like.new_empty([batch, length, heads, *size], dtype=dtype).transpose(1, 2)

    @module.register_op_impl(attention)
    def fused(fake_mode, func, query, key, *args, **kwargs):
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        with fake_mode:
            statistics = heads_last(query, query.shape[:3], wide)
            output = torch.empty_like(query)
        return output, statistics, None, None, query.shape[2], key.shape[2], None, None, None

    @module.register_op_impl(backward)
    def fused_backward(fake_mode, func, grad, query, key, value, *args, **kwargs):
        def like(tensor, summed):
            if summed:  # over the queries that share a head
                return tensor.new_empty(tensor.shape)
            return heads_last(tensor, tensor.shape, tensor.dtype)

        grouped = key.shape[1] != query.shape[1]
        with fake_mode:
            return like(query, False), like(key, grouped), like(value, grouped), None
