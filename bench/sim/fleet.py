"""What is simulated: cards and the models on them. Figures are anchored to published ones, see docs/simulator.md."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from catalog.snapshot import Model
from protocol.spec import ModelSpec
from workers.config import WorkerConfig

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Card:
    """One device: how long forwards and loads take on it, and what fits."""

    memory_bytes: int = 12 * GIB  # for models, of 24
    fixed_s: float = 0.005  # every forward: launches, copies
    s_per_cost_and_gib: float = 24e-6  # a model of 1 GiB reads 42,000 tokens a second
    load_fixed_s: float = 0.5  # objects, allocator, checks
    load_bytes_per_s: float = 1.5 * GIB
    unload_s: float = 0.01
    wake_bytes_per_s: float = 12 * GIB
    host_bytes: int = 0  # for models that left the card
    depth: int = 2
    budget: int = 8192
    target_s: float = 0.1

    def forward_s(self, size: int, cost: int) -> float:
        return self.fixed_s + self.s_per_cost_and_gib * size / GIB * cost

    def load_s(self, size: int) -> float:
        return self.load_fixed_s + size / self.load_bytes_per_s

    def wake_s(self, size: int) -> float:
        return size / self.wake_bytes_per_s

    def cost_per_s(self, size: int) -> float:
        """What a model of this size gets through with full batches and the card to itself."""
        rate = self.s_per_cost_and_gib * size / GIB
        batch = min(self.budget, (self.target_s - self.fixed_s) / rate)
        return batch / (self.fixed_s + rate * batch)

    def config(self, worker_id: str) -> WorkerConfig:
        return WorkerConfig(
            worker_id=worker_id,
            data=Path(),
            device="cuda",
            memory_bytes=self.memory_bytes,
            host_bytes=self.host_bytes,
            budget=self.budget,
            target_s=self.target_s,
            depth=self.depth,
        )


def make_models(count: int, seed: int) -> list[Model]:
    """Small models of many sizes, 0.25 to 4 GiB, about 1 GiB on average. Popularity has nothing to do with size."""
    source = random.Random(seed)
    sizes = [min(max(source.lognormvariate(math.log(0.8), 0.6), 0.25), 4.0) for _ in range(count)]
    return [make_model(f"sim/model-{number:04d}", round(size * GIB)) for number, size in enumerate(sizes)]


def make_model(name: str, size: int) -> Model:
    spec = ModelSpec(model=name, family="sim", primitives=("encode",), outputs=("dense",), load={"bytes": size})
    return Model(spec)


def size_of(spec: ModelSpec) -> int:
    return int(spec.load["bytes"])


def zipf(count: int, exponent: float) -> Sequence[float]:
    weights = [1 / (rank + 1) ** exponent for rank in range(count)]
    total = sum(weights)
    return [weight / total for weight in weights]
