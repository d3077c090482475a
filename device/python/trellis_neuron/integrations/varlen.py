"""torch.nn.attention.varlen: PyTorch's kernels are CUDA's. On the device each sequence of the
packed batch is one fused attention."""

import itertools
import math

import torch

from .. import neuron

MODULE = "torch.nn.attention.varlen"


def _lengths(ends: torch.Tensor) -> list[int]:
    if neuron.session_options()["shape_only"]:
        raise NotImplementedError(
            "neuron: varlen_attn needs the lengths in cu_seq_q and cu_seq_k, which shape-only mode "
            "does not have: use scaled_dot_product_attention with a mask"
        )
    return ends.tolist()


def _sequences(cu_seq_q, cu_seq_k):
    """Per sequence: where its queries and its keys are."""
    q, k = _lengths(cu_seq_q), _lengths(cu_seq_q if cu_seq_k is None else cu_seq_k)
    for queries, keys in zip(itertools.pairwise(q), itertools.pairwise(k)):
        yield slice(*queries), slice(*keys)


def _bias(window, queries: int, keys: int, like: torch.Tensor) -> torch.Tensor | None:
    """0 where a query sees a key, else -inf. The last query is aligned with the last key."""
    left, right = window
    if left < 0 and right < 0:
        return None
    distance = torch.arange(keys, device=like.device)[None, :]
    distance = distance - torch.arange(keys - queries, keys, device=like.device)[:, None]
    hidden = distance > right if right >= 0 else torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden = hidden | (distance < -left)
    return torch.zeros_like(distance, dtype=like.dtype).masked_fill(hidden, -math.inf)


def _as_batch(packed: torch.Tensor) -> torch.Tensor:
    """[length, heads, size] → [1, heads, length, size]"""
    return packed.transpose(0, 1)[None]


def _as_packed(batch: torch.Tensor) -> torch.Tensor:
    return batch[0].transpose(0, 1)


def _forward(query, key, value, cu_seq_q, cu_seq_k, scale, window, out):
    statistics = query.new_empty((query.size(1), query.size(0)), dtype=torch.float)
    for q, k in _sequences(cu_seq_q, cu_seq_k):
        bias = _bias(window, q.stop - q.start, k.stop - k.start, query)
        one = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
            *map(_as_batch, (query[q], key[k], value[k])), bias, scale=scale
        )
        out[q] = _as_packed(one[0])
        statistics[:, q] = one[1][0]
    return statistics


def _backward(grad_out, query, key, value, out, lse, cu_seq_q, cu_seq_k, scale, window):
    grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    for q, k in _sequences(cu_seq_q, cu_seq_k):
        bias = _bias(window, q.stop - q.start, k.stop - k.start, query)
        of_one = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward(
            *map(_as_batch, (grad_out[q], query[q], key[k], value[k])),
            bias,
            [True, True, True, False],
            _as_batch(out[q]),
            lse[None, :, q],
            None,
            None,
            q.stop - q.start,
            k.stop - k.start,
            0.0,
            False,
            None,
            None,
            scale=scale,
        )
        for grad, part, at in zip(grads, of_one, (q, k, k)):
            grad[at] = _as_packed(part)
    return tuple(grads)


def _window(is_causal: bool, window) -> tuple[int, int]:
    left, right = window or (-1, -1)
    return (left, 0) if is_causal else (left, right)


def _refuse(seqused_k, block_table) -> None:
    for name, value in (("seqused_k", seqused_k), ("block_table", block_table)):
        if value is not None:
            raise NotImplementedError(f"neuron: varlen_attn: {name} is not supported")


def register(module) -> None:
    @module._varlen_attn.register_kernel(neuron.NAME)
    def attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, scale=None,
                  window_size=None, enable_gqa=False, seqused_k=None, block_table=None,
                  num_splits=None):  # fmt: skip
        _refuse(seqused_k, block_table)
        out, window = torch.empty_like(query), _window(is_causal, window_size)
        lse = _forward(query, key, value, cu_seq_q, cu_seq_k, scale, window, out)
        return out, lse, torch.zeros(2, dtype=torch.uint64, device=query.device)

    @module._varlen_attn_out.register_kernel(neuron.NAME)
    def attention_out(out, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False,
                      scale=None, window_size=None, enable_gqa=False, seqused_k=None,
                      block_table=None, num_splits=None):  # fmt: skip
        _refuse(seqused_k, block_table)
        window = _window(is_causal, window_size)
        return _forward(query, key, value, cu_seq_q, cu_seq_k, scale, window, out)

    @module._varlen_attn_backward.register_kernel(neuron.NAME)
    def backward(grad_out, query, key, value, out, lse, cu_seq_q, cu_seq_k, max_q, max_k,
                 is_causal, rng_state, scale=None, window_size=None):  # fmt: skip
        window = _window(is_causal, window_size)
        return _backward(grad_out, query, key, value, out, lse, cu_seq_q, cu_seq_k, scale, window)
