"""Generators: the CPU's numbers for one seed, one generator per device, states that come and go."""

import torch
from case import checks, family
from compare import expect, same
from neuron_device import DEVICE, OTHER_DEVICE
from opinfo import SEED

DRAWS = {
    "normal_": lambda t, g: t.normal_(generator=g),
    "uniform_": lambda t, g: t.uniform_(-1, 3, generator=g),
    "bernoulli_": lambda t, g: t.bernoulli_(0.3, generator=g),
    "random_": lambda t, g: t.random_(0, 100, generator=g),
    "exponential_": lambda t, g: t.exponential_(2, generator=g),
    "cauchy_": lambda t, g: t.cauchy_(generator=g),
    "log_normal_": lambda t, g: t.log_normal_(generator=g),
    "geometric_": lambda t, g: t.geometric_(0.4, generator=g),
    "rand": lambda t, g: torch.rand(5, 7, device=t.device, generator=g),
    "randn": lambda t, g: torch.randn(5, 7, device=t.device, generator=g),
    "randint": lambda t, g: torch.randint(3, 90, (17,), device=t.device, generator=g),
    "randperm": lambda t, g: torch.randperm(33, device=t.device, generator=g),
    "multinomial": lambda t, g: torch.multinomial(t.fill_(1), 4, generator=g),
    "poisson": lambda t, g: torch.poisson(t.fill_(4), generator=g),
    "binomial": lambda t, g: torch.binomial(t.fill_(9), torch.full_like(t, 0.4), generator=g),
    "normal": lambda t, g: torch.normal(t.fill_(1), 2.0, generator=g),
    "rrelu": lambda t, g: torch.nn.functional.rrelu(t.fill_(-1), training=True),
    "dropout": lambda t, g: torch.nn.functional.dropout(t.fill_(1), 0.4),
    "alpha_dropout": lambda t, g: torch.nn.functional.alpha_dropout(t.fill_(1), 0.4, training=True),
    "feature_dropout": lambda t, g: torch.nn.functional.dropout2d(t.fill_(1)[None], 0.4),
    "gumbel_softmax": lambda t, g: torch.nn.functional.gumbel_softmax(t.fill_(1)),
    "trunc_normal_": lambda t, g: torch.nn.init.trunc_normal_(t, generator=g),
    "kaiming_uniform_": lambda t, g: torch.nn.init.kaiming_uniform_(t, generator=g),
    "orthogonal_": lambda t, g: torch.nn.init.orthogonal_(t, generator=g),
}


def draw(name, device, generator):
    return DRAWS[name](torch.zeros(6, 9, device=device), generator)


def default_generator(name):
    """One seed for all devices: torch.manual_seed."""
    torch.manual_seed(SEED)
    expected = [draw(name, "cpu", None) for _ in range(2)]
    torch.manual_seed(SEED)
    got = [draw(name, DEVICE, None) for _ in range(2)]
    same(got, expected)


def own_generator(name):
    expected = draw(name, "cpu", torch.Generator().manual_seed(SEED))
    generator = torch.Generator(DEVICE).manual_seed(SEED)
    same(draw(name, DEVICE, generator), expected)


def devices_are_independent():
    torch.manual_seed(SEED)
    first = torch.rand(8, device=DEVICE).cpu()
    torch.manual_seed(SEED)
    torch.rand(100, device=OTHER_DEVICE)
    torch.rand(100)
    same(torch.rand(8, device=DEVICE), first)
    same(
        torch.rand(8, device=OTHER_DEVICE),
        torch.rand(108, generator=torch.Generator().manual_seed(SEED))[100:].clone(),
    )


def state_comes_and_goes():
    torch.manual_seed(SEED)
    torch.rand(5, device=DEVICE)
    state = torch.neuron.get_rng_state(DEVICE)
    first = torch.randn(9, device=DEVICE).cpu()
    torch.neuron.set_rng_state(state, DEVICE)
    same(torch.randn(9, device=DEVICE), first)


def generator_state():
    generator = torch.Generator(DEVICE).manual_seed(SEED)
    torch.rand(3, device=DEVICE, generator=generator)
    state = generator.get_state()
    first = torch.rand(4, device=DEVICE, generator=generator).cpu()
    second = torch.Generator(DEVICE)
    second.set_state(state)
    same(torch.rand(4, device=DEVICE, generator=second), first)
    expect(
        generator.initial_seed() == SEED,
        "generator",
        "initial_seed",
        generator.initial_seed(),
        SEED,
    )
    expect(generator.device == DEVICE, "generator", "device", generator.device, DEVICE)


def fork_rng_restores():
    torch.manual_seed(SEED)
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        torch.rand(50, device=DEVICE)
    first = torch.rand(4, device=DEVICE).cpu()
    torch.manual_seed(SEED)
    same(torch.rand(4, device=DEVICE), first)


def wrong_generator_is_refused():
    for device, generator in (
        (DEVICE, torch.Generator()),
        ("cpu", torch.Generator(DEVICE)),
        (DEVICE, torch.Generator(OTHER_DEVICE)),
    ):
        try:
            torch.rand(3, device=device, generator=generator)
        except RuntimeError as error:
            expect(
                "device" in str(error),
                str(device),
                "message",
                str(error),
                "a sentence about the generator's device",
            )
        else:
            raise AssertionError(f"a generator of {generator.device} was taken on {device}")


OTHERS = {
    f.__name__: f
    for f in (
        devices_are_independent,
        state_comes_and_goes,
        generator_state,
        fork_rng_restores,
        wrong_generator_is_refused,
    )
}
WITHOUT_GENERATOR = {"rrelu", "dropout", "alpha_dropout", "feature_dropout", "gumbel_softmax"}


@family("random", "random numbers: the CPU's for one seed; a generator per device; states")
class RandomNumbers:
    @staticmethod
    def cases():
        yield from checks([f"default.{name}" for name in DRAWS])
        yield from checks([f"generator.{name}" for name in DRAWS if name not in WITHOUT_GENERATOR])
        yield from checks(OTHERS)

    @staticmethod
    def run(subject, dtype):
        if subject in OTHERS:
            return OTHERS[subject]()
        kind, name = subject.split(".", 1)
        return {"default": default_generator, "generator": own_generator}[kind](name)
