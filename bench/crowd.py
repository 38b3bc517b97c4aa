"""Twenty fake models on one device: what room for eight of them costs against room for all.

How much it must cost whatever the policy is follows from Little's law. A model that is absent holds up those who ask
for it, there are only so many clients, and one pass over all models takes as long as their loads. `most_possible`
states it, so that a figure can be judged against what any scheduler could do.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from bench import load
from bench.figure import Figure
from bench.load import Check
from bench.outcome import Outcome
from bench.system import Serving, System
from bench.wire import DIALECTS
from workers.families.fake import vector

MODELS, ROOM, CLIENTS = 20, 8, 64
LOAD_S, FORWARD_S = 2.0, 0.02
SIZE = 100 << 20
DIMS = 32
ROUNDS, WHOLE_S, PART_S, SETTLED_S = 2, 9.0, 30.0, 4.0
DIALECT = DIALECTS["native"]


def name(number: int) -> str:
    return f"shoal-bench/crowd-{number:02d}"


def entries(folder: Path, **fields: object) -> Path:
    """A catalog of the twenty; `fields` are added to each entry."""
    for number in range(MODELS):
        entry = {
            "id": name(number),
            "description": "One of many that do not fit together.",
            "family": "fake",
            "primitives": ["encode"],
            "outputs": ["dense"],
            "dims": {"dense": DIMS},
            "load": {"bytes": SIZE, "load_s": LOAD_S, "forward_s": FORWARD_S},
            **fields,
        }
        (folder / f"crowd-{number:02d}.yaml").write_text(json.dumps(entry))
    return folder


@contextmanager
def serving(
    system: System, room: int, settings: Mapping[str, str] | None = None, **fields: object
) -> Iterator[Serving]:
    """Twenty models of which `room` fit; all that fit are loaded once before it is handed over."""
    catalog = entries(system.folder(), **fields)
    memory = str(SIZE * room + SIZE // 2)
    with system.serve({"SHOAL_CATALOG": str(catalog), "SHOAL_MEMORY_BYTES": memory, **(settings or {})}) as product:
        with ThreadPoolExecutor(room) as threads:
            list(threads.map(lambda number: product.warm(name(number)), range(room)))
        yield product


@dataclass(frozen=True, slots=True)
class Traffic:
    """Texts by model in the order in which clients ask."""

    asked: Sequence[tuple[int, str]]

    @classmethod
    def cyclic(cls, count: int = 2000) -> "Traffic":
        return cls([(number % MODELS, f"text {number}") for number in range(count)])

    @classmethod
    def zipf(cls, count: int = 2000, seed: int = 1) -> "Traffic":
        weights = [1 / (rank + 1) for rank in range(MODELS)]
        models = random.Random(seed).choices(range(MODELS), weights, k=count)
        return cls([(model, f"text {number}") for number, model in enumerate(models)])

    def run(self, product: Serving, seconds: float, clients: int = CLIENTS) -> Outcome:
        requests = [DIALECT.request(product.url, name(model), text) for model, text in self.asked]
        return load.run(product.url, requests, self._check(), connections=clients, seconds=seconds)

    def _check(self) -> Check:
        expected = [vector(text, DIMS) for _, text in self.asked]

        def check(index: int, status: int, body: bytes) -> str | None:
            if status != 200:
                return f"text {index}: status {status}: {body[:200]!r}"
            found = DIALECT.vectors(body)
            same = len(found) == 1 and np.allclose(found[0], expected[index], atol=1e-3)
            return None if same else f"text {index}: not its vector"

        return check


def compare(system: System, traffic: Traffic, bar: float) -> Figure:
    """Room for all and room for some take turns, so that whatever else the machine does meets both."""
    wholes, parts = [], []
    with serving(system, MODELS) as whole, serving(system, ROOM) as part:
        for _ in range(ROUNDS):
            wholes.append(traffic.run(whole, WHOLE_S))
            parts.append(traffic.run(part, PART_S))
        loads = part.counters()["loads"]
    all_rate = fmean(outcome.rate_between(SETTLED_S, WHOLE_S) for outcome in wholes)
    some_rate = fmean(outcome.rate_between(SETTLED_S, PART_S) for outcome in parts)
    failed = [complaint for outcome in (*wholes, *parts) for complaint in outcome.wrong]
    unanswered = sum(outcome.unanswered for outcome in (*wholes, *parts))
    share = some_rate / all_rate
    longest = max(max(outcome.took) for outcome in parts)
    value = f"{share:.2f} of all-resident; {len(failed)} failed, {unanswered} unanswered"
    note = f"{some_rate:.1f} against {all_rate:.1f} requests/s, longest wait {longest:.1f} s, {loads} loads"
    return Figure(value, share >= bar and not failed and not unanswered, "; ".join([note, *failed[:3]]))


def most_possible(loads_at_once: int) -> float:
    """Requests a second that no policy can exceed when models are asked for in turn and none is favoured.

    With L loads at once a pass over all N models takes C = N * LOAD_S / L, in which each is resident for
    T = C * (ROOM - L) / N. Requests that come in the other C - T wait, on average half of it, so that
    X * (C - T)^2 / 2C clients are held up at a throughput of X, and there are only CLIENTS of them.
    """
    cycle = MODELS * LOAD_S / loads_at_once
    resident = cycle * (ROOM - loads_at_once) / MODELS
    return CLIENTS * 2 * cycle / (cycle - resident) ** 2
