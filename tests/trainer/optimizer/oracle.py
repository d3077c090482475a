"""Independent optimizers: PyTorch's and transformers', and NumPy for those that neither has.
Prints, for each case, the parameters after each step as `case step parameter<tab>value…`, values in
hexadecimal."""

import numpy as np
import torch
from transformers.optimization import Adafactor

SHAPES = [(6, 4), (5,), (1, 3)]
STEPS = 20
WD = 0.1


def start():
    """Values of parameters; the C++ test computes the same."""
    first, values = 0, []
    for shape in SHAPES:
        count = int(np.prod(shape))
        values.append(np.sin(1.7 * np.arange(first, first + count) + 0.3).reshape(shape))
        first += count
    return values


def gradients(step):
    first, values = 0, []
    for shape in SHAPES:
        count = int(np.prod(shape))
        values.append(
            (
                np.cos(0.9 * np.arange(first, first + count) + 1.1 * step) * (0.1 + 0.05 * step)
            ).reshape(shape)
        )
        first += count
    return values


def torch_steps(make):
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in start()]
    optimizer = make(parameters)
    for step in range(1, STEPS + 1):
        for parameter, gradient in zip(parameters, gradients(step)):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        yield [parameter.detach().numpy() for parameter in parameters]


def adamw_fp32_opt_state(lr, b1, b2, eps, wd):
    p = start()
    m, v = [np.zeros_like(x) for x in p], [np.zeros_like(x) for x in p]
    for t in range(1, STEPS + 1):
        for i, g in enumerate(gradients(t)):
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            p[i] = p[i] - lr * np.sqrt(1 - b2**t) / (1 - b1**t) * m[i] / (np.sqrt(v[i]) + eps)
            p[i] = p[i] - lr * wd * p[i]
        yield p


def novograd(
    lr, b1, b2, eps, wd, averaging=False, amsgrad=False, luc=False, trust=1e-3, luc_eps=1e-8
):
    p = start()
    m, v, top = [np.zeros_like(x) for x in p], [0.0] * len(p), [0.0] * len(p)
    for t in range(1, STEPS + 1):
        for i, g in enumerate(gradients(t)):
            n = float((g * g).sum())
            v[i] = n if t == 1 else b2 * v[i] + (1 - b2) * n
            top[i] = max(top[i], v[i])
            g = g / (np.sqrt(top[i] if amsgrad else v[i]) + eps) + wd * p[i]
            m[i] = b1 * m[i] + (g * (1 - b1) if averaging else g)
            rate = (
                min(lr, trust * np.linalg.norm(p[i]) / (np.linalg.norm(m[i]) + luc_eps))
                if luc
                else lr
            )
            p[i] = p[i] - rate * m[i]
        yield p


def adafactor(**arguments):
    return lambda parameters: Adafactor(
        parameters,
        eps=(1e-30, 1e-3),
        clip_threshold=1.0,
        decay_rate=-0.8,
        weight_decay=WD,
        **arguments,
    )


optim = torch.optim
CASES = {
    "adamw": torch_steps(
        lambda p: optim.AdamW(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=WD)
    ),
    "adamw/amsgrad": torch_steps(lambda p: optim.AdamW(p, lr=0.01, weight_decay=WD, amsgrad=True)),
    "adamw_fp32OptState": adamw_fp32_opt_state(0.01, 0.9, 0.999, 1e-6, WD),
    "adam": torch_steps(lambda p: optim.Adam(p, lr=0.01, weight_decay=WD)),
    "adam/amsgrad": torch_steps(lambda p: optim.Adam(p, lr=0.01, weight_decay=WD, amsgrad=True)),
    "sgd": torch_steps(lambda p: optim.SGD(p, lr=0.01, weight_decay=WD)),
    "sgd/momentum": torch_steps(
        lambda p: optim.SGD(p, lr=0.01, weight_decay=WD, momentum=0.9, dampening=0.3)
    ),
    "sgd/nesterov": torch_steps(
        lambda p: optim.SGD(p, lr=0.01, weight_decay=WD, momentum=0.9, nesterov=True)
    ),
    "adadelta": torch_steps(lambda p: optim.Adadelta(p, lr=0.01, weight_decay=WD)),
    "adamax": torch_steps(lambda p: optim.Adamax(p, lr=0.01, weight_decay=WD)),
    "adagrad": torch_steps(lambda p: optim.Adagrad(p, lr=0.01, weight_decay=WD)),
    "adagrad/decay": torch_steps(
        lambda p: optim.Adagrad(
            p, lr=0.01, weight_decay=WD, lr_decay=0.1, initial_accumulator_value=0.2
        )
    ),
    "rmsprop": torch_steps(lambda p: optim.RMSprop(p, lr=0.01, weight_decay=WD)),
    "rmsprop/centered": torch_steps(
        lambda p: optim.RMSprop(p, lr=0.01, weight_decay=WD, centered=True)
    ),
    "rmsprop/momentum": torch_steps(
        lambda p: optim.RMSprop(p, lr=0.01, weight_decay=WD, momentum=0.7, centered=True, alpha=0.9)
    ),
    "rprop": torch_steps(lambda p: optim.Rprop(p, lr=0.01)),
    "novograd": novograd(0.01, 0.95, 0.98, 1e-8, WD),
    "novograd/amsgrad": novograd(0.01, 0.95, 0.98, 1e-8, WD, averaging=True, amsgrad=True),
    "novograd/luc": novograd(0.01, 0.95, 0.98, 1e-8, WD, luc=True),
    "adafactor": torch_steps(adafactor(lr=0.01, scale_parameter=True, relative_step=False)),
    "adafactor/beta1": torch_steps(
        adafactor(lr=0.01, beta1=0.9, scale_parameter=False, relative_step=False)
    ),
    "adafactor/relative": torch_steps(adafactor(scale_parameter=True, relative_step=True)),
    "adafactor/warmup_init": torch_steps(
        adafactor(scale_parameter=True, relative_step=True, warmup_init=True)
    ),
}

if __name__ == "__main__":
    for case, steps in CASES.items():
        for step, values in enumerate(steps, 1):
            for index, value in enumerate(values):
                print(
                    f"{case} {step} {index}",
                    " ".join(float(x).hex() for x in np.asarray(value).ravel()),
                    sep="\t",
                )
