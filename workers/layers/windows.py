"""Long texts in windows of words or tokens that overlap, and what was found in them as one. No torch.

Windows overlap so that nothing is cut by all of them: what is no longer than the overlap lies whole in one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from protocol.errors import InputTooLong

Entity = Mapping[str, Any]  # text, label, score, start, end


@dataclass(frozen=True, slots=True)
class Reach:
    """How much a model reads at once: `most` units that together take `room`, units being words or tokens."""

    most: int
    room: int
    overlap: int
    unit: str = "words"  # for messages


@dataclass(frozen=True, slots=True)
class Window:
    """Units `start` to `end`, the last not included, of a text of which there is more in front or behind."""

    start: int
    end: int
    is_first: bool = True
    is_last: bool = True
    is_cut: bool = False  # part of the text is read by no window


def plan(model: str, sizes: Sequence[int], reach: Reach, overflow: str | None) -> list[Window]:
    """What is read of a text whose units take `sizes`; `overflow` is an option of `extract`. Raises InputTooLong.

    A unit larger than the room has a window of its own, which the model then reads as far as it can.
    """
    if not sizes:
        return []
    totals = [0, *accumulate(sizes)]
    bounds = _bounds(totals, reach)
    too_large = any(size > reach.room for size in sizes)
    if overflow == "error" and (len(bounds) > 1 or too_large):
        raise InputTooLong(
            f"the text has {len(sizes)} {reach.unit}; model {model!r} reads {bounds[0][1]} of them at once; "
            "the option overflow: window reads all",
            extra={reach.unit: len(sizes), "limit": bounds[0][1]},
        )
    kept = bounds[:1] if overflow == "truncate" else bounds
    is_cut = len(kept) < len(bounds) or too_large
    last = len(kept) - 1
    return [Window(*bound, index == 0, index == last, is_cut) for index, bound in enumerate(kept)]


def _bounds(totals: Sequence[int], reach: Reach) -> list[tuple[int, int]]:
    units = len(totals) - 1
    overlap = min(reach.overlap, reach.most // 2)
    bounds = [(0, _end(totals, 0, reach))]
    while (end := bounds[-1][1]) < units:
        start = max(end - overlap, bounds[-1][0] + 1)
        while start < end and _end(totals, start, reach) <= end:  # it must bring something new
            start += 1
        bounds.append((start, _end(totals, start, reach)))
    return bounds


def _end(totals: Sequence[int], start: int, reach: Reach) -> int:
    """Behind the last unit that still fits behind `start`; at least one does."""
    end = start + 1
    while end < len(totals) - 1 and end - start < reach.most and totals[end + 1] - totals[start] <= reach.room:
        end += 1
    return end


@dataclass(frozen=True, slots=True)
class Found:
    """The entities of one window, with offsets into the whole text, and the characters it read."""

    entities: Sequence[Entity]
    start: int
    end: int
    is_first: bool
    is_last: bool

    def touches_cut(self, entity: Entity) -> bool:
        """Whether it may go on where this window does not reach."""
        return bool(
            (entity["start"] == self.start and not self.is_first) or (entity["end"] == self.end and not self.is_last)
        )


def merge(found: Sequence[Found], flat: bool, multi_label: bool) -> list[Entity]:
    """The entities of the whole text, each once, with its best score, in the order of the text.

    What two windows disagree on goes to the one that saw all of it, then to the better score. `flat` and `multi_label`
    say which spans may stand together, as in GLiNER: nested ones unless flat, equal ones if several labels are wanted.
    """
    if len(found) == 1:
        return list(found[0].entities)
    best: dict[tuple[int, int, str], tuple[bool, Entity]] = {}
    for window in found:
        for entity in window.entities:
            place = entity["start"], entity["end"], entity["label"]
            rank = window.touches_cut(entity), entity
            if place not in best or _order(rank) < _order(best[place]):
                best[place] = rank
    kept: list[tuple[bool, Entity]] = []
    for rank in sorted(best.values(), key=_order):
        if not any(_excludes(other, rank, flat, multi_label) for _, other in kept):
            kept.append(rank)
    return sorted((entity for _, entity in kept), key=lambda entity: (entity["start"], entity["end"]))


def _order(rank: tuple[bool, Entity]) -> tuple[bool, float, int]:
    may_be_cut, entity = rank
    return may_be_cut, -entity["score"], entity["start"]


def _excludes(kept: Entity, rank: tuple[bool, Entity], flat: bool, multi_label: bool) -> bool:
    may_be_cut, entity = rank
    one, other = (kept["start"], kept["end"]), (entity["start"], entity["end"])
    if one[1] <= other[0] or other[1] <= one[0]:
        return False
    if one == other:
        return not multi_label
    if flat or (may_be_cut and kept["label"] == entity["label"]):
        return True
    is_nested = (one[0] <= other[0] and other[1] <= one[1]) or (other[0] <= one[0] and one[1] <= other[1])
    return not is_nested
