"""Learning rates of NeMo's schedules from their published formulas, and of PyTorch's from PyTorch.
Prints `case<tab>rate of step 0, 1, …`."""

import math

import torch

B, STEPS = 0.5, 46


def warmup(t, W):
    return B * (t + 1) / (W + 1)


def policy(formula, W=0, H=0, M=40, p=0.0, hold=False):
    """Warm-up, hold, floor after the end: what NeMo's WarmupPolicy and WarmupHoldPolicy have in
    common."""

    def rate(t):
        if W > 0 and t <= W:
            return warmup(t, W)
        if hold and W <= t < H + W:
            return B
        if t > M:
            return p
        return formula(t)

    return [rate(t) for t in range(STEPS)]


def linear_with_warmup(W, M):
    return [
        B * t / max(1, W) if t < W else B * max(0, (M - t) / max(1, M - W)) for t in range(STEPS)
    ]


def cosine_with_tail(W, C, M, p):
    D = M - C - W

    def rate(t):
        if t <= W:
            return B * t / W
        return p if t > W + D else p + (B - p) * 0.5 * (math.cos(math.pi * (t - W) / D) + 1)

    return [rate(t) for t in range(STEPS)]


def noam(W, d, p):
    def rate(t):
        t = max(1, t)
        lr = B * d**-0.5 * (min(t**-0.5, t * W**-1.5) if W > 0 else t**-0.5)
        return max(lr, p) if t > W else lr

    return [rate(t) for t in range(STEPS)]


def t5(C, M, p):
    return [1 / C**0.5 if t <= C else p if t > M else 1 / t**0.5 for t in range(STEPS)]


def polynomial(begin, M, p, power, cycle):
    def formula(t):
        step, length = t - begin, M - begin
        if cycle:
            length *= 1.0 if step == 0 else math.ceil(step / length)
        else:
            step = min(step, length)
        return (B - p) * (1 - step / length) ** power + p

    return formula


def torch_rates(make, lr=B, per_epoch=False):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    scheduler, rates = make(optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


METRICS = [
    3.0,
    2.0,
    2.5,
    1.99999,
    2.5,
    2.5,
    2.5,
    1.5,
    1.6,
    1.6,
    1.6,
    1.6,
    float("nan"),
    1.6,
    1.0,
    1.1,
    1.1,
    1.1,
    1.1,
    1.1,
    1.1,
    1.1,
]


def plateau(**arguments):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=B)
    scheduler, rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **arguments), []
    for metric in METRICS:
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step(metric)
    return rates


L = torch.optim.lr_scheduler
CASES = {
    "LinearAnnealingWithWarmUp": linear_with_warmup(5, 40),
    "WarmupPolicy": policy(lambda t: B, W=5),
    "WarmupPolicy/floor": policy(lambda t: B, W=5, p=0.01),
    "WarmupHoldPolicy": policy(lambda t: B, W=5, H=10, p=0.01, hold=True),
    "CosineAnnealing": policy(
        lambda t: 0.02 + (B - 0.02) * 0.5 * (1 + math.cos(math.pi * (t - 5) / 35)), W=5, p=0.02
    ),
    "CosineAnnealing/tail": cosine_with_tail(5, 8, 40, 0.02),
    "SquareAnnealing": policy(lambda t: max(0.01, B * ((35 - (t - 5)) / 35) ** 2), W=5, p=0.01),
    "SquareRootAnnealing": policy(lambda t: max(0.01, B * math.sqrt((40 - t) / 40)), W=5, p=0.01),
    "NoamAnnealing": noam(5, 64, 0.015),
    "NoamAnnealing/no_warmup": noam(0, 64, 0.0),
    "NoamHoldAnnealing": policy(
        lambda t: max(0.1, B * max(1, 5**0.6) / max(1, (t - 10) ** 0.6)),
        W=5,
        H=10,
        p=0.1,
        hold=True,
    ),
    "WarmupAnnealing": policy(lambda t: 0.02 + (1 - (t - 5) / 35) * (B - 0.02), W=5, p=0.02),
    "InverseSquareRootAnnealing": policy(lambda t: B / ((t + 1) / 6) ** 0.5, W=5),
    "T5InverseSquareRootAnnealing": t5(9, 40, 0.02),
    "PolynomialDecayAnnealing": policy(polynomial(5, 40, 0.02, 2.0, False), W=5, p=0.02),
    "PolynomialDecayAnnealing/cycle": policy(polynomial(0, 40, 0.02, 1.0, True), p=0.02),
    "PolynomialHoldDecayAnnealing": policy(
        polynomial(15, 40, 0.02, 1.5, False), W=5, H=10, p=0.02, hold=True
    ),
    "WarmupHoldAnnealLinear": policy(
        lambda t: 0.02 + (B - 0.02) * (1 - (t - 15) / 25), W=5, H=10, p=0.02, hold=True
    ),
    "WarmupHoldAnnealOneMinusSquareRoot": policy(
        lambda t: 0.02 + (B - 0.02) * (1 - math.sqrt((t - 15) / 25)), W=5, H=10, p=0.02, hold=True
    ),
    "StepLR": torch_rates(lambda o: L.StepLR(o, step_size=7, gamma=0.6)),
    "ExponentialLR": torch_rates(lambda o: L.ExponentialLR(o, gamma=0.9)),
    "CyclicLR": torch_rates(
        lambda o: L.CyclicLR(o, base_lr=0.1, max_lr=0.5, step_size_up=6, step_size_down=4), lr=0.1
    ),
    "CyclicLR/triangular2": torch_rates(
        lambda o: L.CyclicLR(o, 0.1, 0.5, step_size_up=5, mode="triangular2"), lr=0.1
    ),
    "CyclicLR/exp_range": torch_rates(
        lambda o: L.CyclicLR(o, 0.1, 0.5, step_size_up=5, mode="exp_range", gamma=0.97), lr=0.1
    ),
    "ReduceLROnPlateau": plateau(factor=0.5, patience=1),
    "ReduceLROnPlateau/cooldown": plateau(
        factor=0.5, patience=0, cooldown=2, min_lr=0.2, threshold=0.3
    ),
    "ReduceLROnPlateau/max": plateau(
        mode="max", factor=0.7, patience=2, threshold_mode="abs", threshold=0.01
    ),
    "ReduceLROnPlateau/eps": plateau(factor=0.5, patience=0, eps=0.1),
}

if __name__ == "__main__":
    for case, rates in CASES.items():
        print(case, " ".join(float(rate).hex() for rate in rates), sep="\t")
