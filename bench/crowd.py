"""Twenty fake models on one device: what room for eight of them costs against room for all, the others in the host.

How much it must cost whatever the policy is follows from Little's law. A model that is absent holds up those who ask
for it, there are only so many clients, and one pass over all models takes as long as their loads. `most_possible`
states it, so that a figure can be judged against what any scheduler could do.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import load
from bench.figure import Figure
from bench.load import Check
from bench.outcome import Outcome
from bench.system import Serving, System
from bench.wire import DIALECTS
from workers.config import WorkerConfig
from workers.families.fake import vector

MODELS, ROOM, CLIENTS = 20, 8, 64
LOAD_S, WAKE_S, FORWARD_S = 2.0, 0.05, 0.02
SIZE = 100 << 20
HOST = MODELS * SIZE  # of the host's memory, for those that are not on the device
DIMS = 32
WHOLE_S, PART_S, SETTLED_S = 9.0, 34.0, 4.0
DIALECT = DIALECTS["native"]
EVEN = [1.0] * MODELS
ZIPF = [1 / (rank + 1) for rank in range(MODELS)]


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
            "load": {"bytes": SIZE, "load_s": LOAD_S, "wake_s": WAKE_S, "forward_s": FORWARD_S},
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
    given = {"SHOAL_CATALOG": str(catalog), "SHOAL_MEMORY_BYTES": memory, "SHOAL_HOST_MEMORY_BYTES": str(HOST)}
    with system.serve({**given, **(settings or {})}) as product:
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
        models = random.Random(seed).choices(range(MODELS), ZIPF, k=count)
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


def compare(system: System, traffic: Traffic, weights: Sequence[float], bar: float) -> Figure:
    """What is measured, beside what could be at most."""
    with serving(system, MODELS) as whole:
        with_all = traffic.run(whole, WHOLE_S)
    with serving(system, ROOM) as part:
        with_some = traffic.run(part, PART_S)
        counters = part.counters()
    all_rate = with_all.rate_between(SETTLED_S, WHOLE_S)
    some_rate = with_some.rate_between(SETTLED_S, PART_S)
    failed = [*with_all.wrong, *with_some.wrong]
    unanswered = with_all.unanswered + with_some.unanswered
    share = some_rate / all_rate
    longest = max(with_some.took)
    value = f"{share:.2f} of all-resident; {len(failed)} failed, {unanswered} unanswered"
    possible = most_possible(weights, WorkerConfig("", Path()).loads_at_once, WAKE_S)
    note = (
        f"{some_rate:.1f} against {all_rate:.1f} requests/s, longest wait {longest:.1f} s, {counters['loads']} loads, "
        f"{counters['wakes']} wakes; "
        f"no policy exceeds {possible:.1f} requests/s (bench/crowd.py)"
    )
    return Figure(value, share >= bar and not failed and not unanswered, "; ".join([note, *failed[:3]]))


def most_possible(weights: Sequence[float], loads_at_once: int, load_s: float = LOAD_S) -> float:
    """Requests a second that no policy can exceed when models are asked for in proportion to `weights`.

    With L loads at once the most wanted ROOM - L models stay and the others take turns. One with the share p of
    requests, loaded every C seconds, holds up X * p * C / 2 clients on average at a throughput of X, and there are only
    CLIENTS of them. All loads together take no more than there is: the sum of load_s / C is L at most. So few clients
    as can be are held up when C is as one over the root of p.
    """
    shares = sorted((weight / sum(weights) for weight in weights), reverse=True)
    roots = sum(math.sqrt(share) for share in shares[ROOM - loads_at_once :])
    return CLIENTS * 2 * loads_at_once / (load_s * roots**2)
