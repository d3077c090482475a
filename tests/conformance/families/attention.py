"""scaled_dot_product_attention runs as one fused operator; it and its backward equal the CPU's
flash kernel."""

import torch
from case import family
from compare import expect, same
from opinfo import SEED
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import profile
from transfer import Transfer

FUSED = "aten::_scaled_dot_product_fused_attention_overrideable"


def inputs(dtype, heads=(4, 4), lengths=(10, 12), size=16, batch=2):
    generator = torch.Generator().manual_seed(SEED)
    shapes = (
        (batch, heads[0], lengths[0], size),
        (batch, heads[1], lengths[1], size),
        (batch, heads[1], lengths[1], size),
    )
    return [
        torch.randn(s, generator=generator, dtype=torch.float32).to(dtype).requires_grad_()
        for s in shapes
    ]


def bool_mask():
    mask = torch.ones(10, 12, dtype=torch.bool).tril(3)
    return mask


# name → (arguments of inputs(), options of the operator, runs fused)
CASES = {
    "plain": ({}, {}, True),
    "causal": ({"lengths": (12, 12)}, {"is_causal": True}, True),
    "scale": ({}, {"scale": 0.3}, True),
    "bool mask": ({}, {"attn_mask": bool_mask}, True),
    "float mask": ({}, {"attn_mask": lambda: torch.linspace(-2, 2, 120).reshape(10, 12)}, True),
    "batched mask": (
        {},
        {"attn_mask": lambda: torch.linspace(-2, 2, 960).reshape(2, 4, 10, 12)},
        True,
    ),
    "grouped": ({"heads": (8, 2)}, {"enable_gqa": True}, True),
    "grouped causal": (
        {"heads": (8, 2), "lengths": (12, 12)},
        {"enable_gqa": True, "is_causal": True},
        True,
    ),
    "one query": ({"lengths": (1, 40)}, {}, True),
    "learned mask": (
        {},
        {"attn_mask": lambda: torch.linspace(-2, 2, 120).reshape(10, 12).requires_grad_()},
        False,
    ),
    "dropout": ({}, {"dropout_p": 0.3}, False),
    "empty": ({"lengths": (0, 12)}, {}, False),
}


def attend(arguments, options):
    torch.manual_seed(SEED)
    with profile() as events:
        result = scaled_dot_product_attention(*arguments, **options)
    mask = options.get("attn_mask")
    wanted = [*arguments, *([mask] if mask is not None and mask.requires_grad else [])]
    generator = torch.Generator().manual_seed(SEED)
    cotangent = torch.randn(result.shape, generator=generator).to(result.dtype).to(result.device)
    return [result, *torch.autograd.grad(result, wanted, cotangent)], {
        event.name for event in events.events()
    }


@family(
    "attention",
    "fused attention and its gradients: masks, causality, grouped heads, dropout, learned masks",
)
class Attention:
    @staticmethod
    def cases():
        return (
            (name.replace(" ", "_"), dtype)
            for name in CASES
            for dtype in ("float32", "bfloat16", "float64")
        )

    @staticmethod
    def run(subject, dtype):
        shape, options, fused = CASES[subject.replace("_", " ")]
        type_ = getattr(torch, dtype)
        options = {key: value() if callable(value) else value for key, value in options.items()}
        if (
            isinstance(options.get("attn_mask"), torch.Tensor)
            and options["attn_mask"].is_floating_point()
        ):
            learns = options["attn_mask"].requires_grad
            options["attn_mask"] = options["attn_mask"].detach().to(type_).requires_grad_(learns)
        arguments = inputs(type_, **shape)
        transfer = Transfer()
        got, names = attend(transfer(arguments), transfer(options))
        expect((FUSED in names) == fused, subject, "fused", FUSED in names, fused)
        if options.get(
            "enable_gqa"
        ):  # the CPU has no fused path for grouped heads: there they are repeated by hand
            expected = attend_repeated(arguments, options)
            same([t.contiguous() for t in got], [t.contiguous() for t in expected])
        else:
            same(got, attend(arguments, options)[0])


def attend_repeated(arguments, options):
    query, key, value = arguments
    groups = query.size(1) // key.size(1)
    result, *gradients = attend(
        [query, *(t.repeat_interleave(groups, 1) for t in (key, value))],
        {**options, "enable_gqa": False},
    )[0]
    return [result, gradients[0], *(g.unflatten(1, (-1, groups)).sum(2) for g in gradients[1:])]
