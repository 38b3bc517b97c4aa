"""Five kinds of model on one device under one ledger, all asked at once: with room for all, and for three of them."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import stand_ins
from bench.figure import Figure
from bench.stand_ins import Kind
from bench.system import Serving, System

NAME = "five kinds of model asked at once, with room for five and for three"
BAR = "60 s each, every answer right, no error"

SECONDS = 60.0
CALLERS = 2  # of each kind
ROOM = {"five": 1 << 30, "three": 290 << 20}  # bytes; each model has about 90 MiB
TOLERANCE = 1e-3
TIMEOUT_S = 120.0


@dataclass
class Tally:
    """What came back; `wrong` are complaints. Shared by the threads of one run."""

    good: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: Kind, complaint: str | None) -> None:
        with self.lock:
            if complaint is None:
                self.good[kind.name] += 1
            else:
                self.wrong.append(f"{kind.name}: {complaint}")


def run(system: System) -> Figure:
    return drive(system, SECONDS)


def drive(system: System, seconds: float) -> Figure:
    catalog = system.folder()
    kinds = stand_ins.make(system.folder(), catalog, system.folder())
    shown, notes = [], []
    holds = True
    for room, size in ROOM.items():
        settings = {"SHOAL_CATALOG": str(catalog), "SHOAL_MEMORY_BYTES": str(size), "SHOAL_DEVICE": "cpu"}
        with system.serve(settings) as serving:
            tally = _together(serving, kinds, seconds)
            evictions = serving.counters()["evictions"]
        holds &= not tally.wrong and all(tally.good[kind.name] for kind in kinds)
        holds &= (evictions == 0) == (room == "five")
        shown.append(f"room for {room}: {sum(tally.good.values())} answers, {len(tally.wrong)} wrong")
        counts = ", ".join(f"{name} {count}" for name, count in tally.good.items())
        notes.append("; ".join([f"{counts}; {evictions} evictions", *tally.wrong[:3]]))
    return Figure("; ".join(shown), holds, " | ".join(notes))


def _together(serving: Serving, kinds: list[Kind], seconds: float) -> Tally:
    """Each kind's first answer, alone, is what all later ones are compared with."""
    wanted = {kind.name: _ask(serving, kind) for kind in kinds}
    tally, until = Tally(), time.monotonic() + seconds

    def call_on(kind: Kind) -> None:
        while time.monotonic() < until:
            try:
                found = _ask(serving, kind)
            except (OSError, ValueError) as error:
                tally.add(kind, str(error)[:200])
            else:
                same = _same(found, wanted[kind.name])
                tally.add(kind, None if same else "its answer is not what it was alone")

    threads = [threading.Thread(target=call_on, args=(kind,)) for kind in kinds for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def _ask(serving: Serving, kind: Kind) -> dict[str, Any]:
    """The answer without what differs from call to call. Raises ValueError with an error's body."""
    body = json.dumps(kind.asked).encode()
    request = urllib.request.Request(f"{serving.url}{kind.path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer: dict[str, Any] = json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise ValueError(f"{error.code} {error.read().decode()}") from None
    answer.pop("timing")
    return answer


def _same(ours: Any, theirs: Any) -> bool:
    """Equal, numbers within rounding: batches differ from call to call."""
    if isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(theirs, float):
        return bool(abs(ours - theirs) <= TOLERANCE * max(1.0, abs(theirs)))
    return bool(ours == theirs)
