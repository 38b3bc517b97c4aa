"""How few loads an order of uses needs if all of it were known beforehand: a lower bound for evictions."""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence


def fewest_loads(order: Sequence[str], sizes: Mapping[str, int], capacity: int) -> int:
    """Loads of a device that, when it needs room, evicts what is used again last, and no more than it must.

    With sizes this is a strong rule, not a proved optimum, as finding that is NP-hard.
    """
    uses: dict[str, deque[int]] = {}
    for at, name in enumerate(order):
        uses.setdefault(name, deque()).append(at)
    held: set[str] = set()
    used = loads = 0
    for name in order:
        uses[name].popleft()
        if name in held:
            continue
        loads += 1
        leaving = _leaving(held, uses, sizes, used + sizes[name] - capacity)
        held -= leaving
        held.add(name)
        used += sizes[name] - sum(sizes[victim] for victim in leaving)
    return loads


def _leaving(held: Iterable[str], uses: Mapping[str, deque[int]], sizes: Mapping[str, int], missing: int) -> set[str]:
    if missing <= 0:
        return set()
    next_use = {name: uses[name][0] if uses[name] else math.inf for name in held}
    chosen: list[str] = []
    latest = [(-at, name) for name, at in next_use.items()]
    heapq.heapify(latest)
    while missing > 0 and latest:
        _, name = heapq.heappop(latest)
        chosen.append(name)
        missing -= sizes[name]
    for name in reversed(list(chosen)):  # those that the others make superfluous stay
        if sizes[name] <= -missing:
            chosen.remove(name)
            missing += sizes[name]
    return set(chosen)
