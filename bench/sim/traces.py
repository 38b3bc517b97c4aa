"""Who asks for what and when: seeded, open-loop arrivals."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.sim.fleet import Card, size_of, zipf
from catalog.snapshot import Model

INTERACTIVE, BULK = "interactive", "bulk"
SHORTEST, LONGEST = 4, 8192


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of one item."""

    at: float
    model: int
    cost: int
    lane: str = INTERACTIVE


@dataclass(frozen=True, slots=True)
class Load:
    """What a trace is asked for; `level` is the share of what the devices could do with every model on every one."""

    models: Sequence[Model]
    card: Card
    devices: int
    level: float
    seconds: float
    seed: int
    exponent: float = 1.0

    def rate(self, shares: Sequence[float], mean_cost: float) -> float:
        """Requests a second at `level` 1."""
        seconds_per_cost = sum(
            share / self.card.cost_per_s(size_of(model.spec)) for share, model in zip(shares, self.models, strict=True)
        )
        return self.devices / (seconds_per_cost * mean_cost)


Draw = Callable[[random.Random], int]


def heavy_tailed(source: random.Random) -> int:
    """Log-normal: half are below 128, one in a hundred above 2,000."""
    return min(max(round(source.lognormvariate(math.log(128), 1.2)), SHORTEST), LONGEST)


def short_and_long(source: random.Random) -> int:
    """Queries beside documents: four of five have some 20 tokens, the rest thousands."""
    if source.random() < 0.8:
        return min(max(round(source.lognormvariate(math.log(20), 0.4)), SHORTEST), LONGEST)
    return min(max(round(1000 * source.paretovariate(1.5)), SHORTEST), LONGEST)


def mean_cost(draw: Draw, seed: int = 0) -> float:
    source = random.Random(seed)
    return sum(draw(source) for _ in range(20_000)) / 20_000


def poisson(load: Load, draw: Draw, shape: Callable[[float], float] = lambda at: 1.0) -> Iterator[Arrival]:
    """Zipf over models, exponential gaps; `shape` (at most 1) thins them over time."""
    source = random.Random(load.seed)
    shares = zipf(len(load.models), load.exponent)
    order = list(range(len(load.models)))
    source.shuffle(order)  # popularity has nothing to do with size
    rate = load.level * load.rate([shares[rank] for rank in _ranks(order)], mean_cost(draw))
    cumulative = list(_running(shares))
    at = 0.0
    while True:
        at += source.expovariate(rate)
        if at >= load.seconds:
            return
        (rank,) = source.choices(range(len(order)), cum_weights=cumulative)
        cost = draw(source)
        if source.random() < shape(at):
            yield Arrival(at, order[rank], cost)


def _ranks(order: Sequence[int]) -> list[int]:
    """The rank of every model; `order` has the model of every rank."""
    ranks = [0] * len(order)
    for rank, model in enumerate(order):
        ranks[model] = rank
    return ranks


def _running(shares: Sequence[float]) -> Iterator[float]:
    total = 0.0
    for share in shares:
        total += share
        yield total


def steady(load: Load) -> Iterator[Arrival]:
    return poisson(load, heavy_tailed)


def mixed(load: Load) -> Iterator[Arrival]:
    return poisson(load, short_and_long)


def diurnal(load: Load) -> Iterator[Arrival]:
    """A day in one run: from a quarter of the level up to all of it and back."""
    return poisson(load, heavy_tailed, lambda at: 0.625 - 0.375 * math.cos(2 * math.pi * at / load.seconds))


def bursts(load: Load) -> Iterator[Arrival]:
    """Half the load is steady; the rest comes at once, every two seconds, for one model, mostly a rare one."""
    yield from _merged(poisson(load, heavy_tailed, lambda at: 0.5), _bursts(load))


def _bursts(load: Load) -> Iterator[Arrival]:
    source = random.Random(load.seed + 1)
    every_s = 2.0
    for number in range(1, math.ceil(load.seconds / every_s)):
        model = source.randrange(len(load.models))
        cost = 0.5 * load.level * every_s * load.devices * load.card.cost_per_s(size_of(load.models[model].spec))
        yield from _burst(source, number * every_s, model, cost, INTERACTIVE)


def _burst(source: random.Random, at: float, model: int, cost: float, lane: str) -> Iterator[Arrival]:
    while cost > 0:
        item = heavy_tailed(source)
        cost -= item
        yield Arrival(at, model, item, lane)


def bulk(load: Load) -> Iterator[Arrival]:
    """Live traffic at three tenths of the level; at a tenth of the time somebody indexes a corpus on one model."""
    yield from _merged(poisson(load, heavy_tailed, lambda at: 0.3), _job(load))


def _job(load: Load) -> Iterator[Arrival]:
    """As much work as all devices could do in the time that is left."""
    source = random.Random(load.seed + 1)
    start = load.seconds / 10
    cost = load.devices * load.card.cost_per_s(size_of(load.models[0].spec)) * (load.seconds - start)
    yield from _burst(source, start, 0, cost, BULK)


def _merged(*streams: Iterator[Arrival]) -> list[Arrival]:
    return sorted((arrival for stream in streams for arrival in stream), key=lambda arrival: arrival.at)


TRACES: dict[str, Callable[[Load], Iterator[Arrival]]] = {
    "steady": steady,
    "mixed": mixed,
    "diurnal": diurnal,
    "bursts": bursts,
    "bulk": bulk,
}
