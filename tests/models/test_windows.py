"""Long texts in windows: everything is read, offsets lead to the text, nothing is lost or doubled."""

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InputTooLong
from workers.layers.windows import Entity, Found, Reach, Window, merge, plan

OVERLAP = 4
WORDS = st.lists(st.sampled_from(["a", "NEW", "YORK", "bb", "é", "日本"]), min_size=1, max_size=60)
REACHES = st.builds(Reach, most=st.integers(8, 20), room=st.integers(24, 60), overlap=st.just(OVERLAP))
SIZES = st.integers(1, 3)


def entity(start: int, end: int, label: str = "place", score: float = 0.5, text: str = "") -> Entity:
    return {"text": text, "label": label, "score": score, "start": start, "end": end}


def bounds(sizes: Sequence[int], reach: Reach, overflow: str | None = None) -> list[tuple[int, int]]:
    return [(window.start, window.end) for window in plan("org/m", sizes, reach, overflow)]


def capitals(text: str, base: int) -> list[Entity]:
    """Runs of at most OVERLAP words in capitals, as a model finds them: longer ones it takes apart."""
    run = rf"\b[A-Z]+(?: [A-Z]+){{0,{OVERLAP - 1}}}\b"
    return [entity(base + one.start(), base + one.end(), text=one[0]) for one in re.finditer(run, text)]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=80), st.integers(1, 20), st.integers(1, 40), st.integers(0, 30)
)
def test_windows_read_every_unit_and_keep_to_the_reach(sizes: list[int], most: int, room: int, overlap: int) -> None:
    windows = bounds(sizes, Reach(most, room, overlap))

    assert windows[0][0] == 0
    assert windows[-1][1] == len(sizes)
    assert all(after[0] <= before[1] < after[1] for before, after in pairwise(windows))
    assert all(end - start <= most for start, end in windows)
    assert all(sum(sizes[start:end]) <= room or end - start == 1 for start, end in windows)


@settings(max_examples=300)
@given(WORDS, REACHES, st.data())
def test_what_is_found_in_windows_is_what_is_in_the_text(words: list[str], reach: Reach, data: st.DataObject) -> None:
    """S038: with offsets into the whole text."""
    # No run is longer than the overlap, so that what a window sees of it is the whole or touches its edge.
    for index in range(OVERLAP, len(words), OVERLAP + 1):
        words[index] = "a"
    text = " ".join(words)
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    sizes = data.draw(st.lists(SIZES, min_size=len(words), max_size=len(words)))
    found = []
    for window in plan("org/m", sizes, reach, None):
        start, end = starts[window.start], starts[window.end - 1] + len(words[window.end - 1])
        found.append(Found(capitals(text[start:end], start), start, end, window.is_first, window.is_last))

    merged = merge(found, flat=True, multi_label=False)

    assert merged == capitals(text, 0)
    assert all(text[one["start"] : one["end"]] == one["text"] for one in merged)


def test_windows_overlap_by_what_is_asked() -> None:
    assert bounds([1] * 20, Reach(10, 100, 4)) == [(0, 10), (6, 16), (12, 20)]


def test_a_unit_larger_than_the_room_stands_alone_and_is_marked() -> None:
    windows = plan("org/m", [1, 9, 1], Reach(10, 5, 2), None)

    assert [(window.start, window.end) for window in windows] == [(0, 1), (1, 2), (2, 3)]
    assert all(window.is_cut for window in windows)


def test_truncating_reads_the_first_window_and_says_so() -> None:
    assert plan("org/m", [1] * 20, Reach(10, 100, 4), "truncate") == [Window(0, 10, True, True, True)]


def test_a_text_that_fits_is_not_truncated() -> None:
    assert plan("org/m", [1] * 10, Reach(10, 10, 4), "truncate") == [Window(0, 10)]


def test_a_text_too_long_is_refused_with_count_and_limit() -> None:
    """S038: count and limit."""
    with pytest.raises(InputTooLong, match="the text has 20 words; model 'org/m' reads 10"):
        plan("org/m", [1] * 20, Reach(10, 100, 4), "error")


def test_a_text_without_units_has_no_windows() -> None:
    assert plan("org/m", [], Reach(10, 100, 4), "error") == []


def test_the_better_score_of_what_both_windows_saw_is_kept() -> None:
    found = [
        Found([entity(6, 9, score=0.6)], 0, 12, True, False),
        Found([entity(6, 9, score=0.9)], 4, 20, False, True),
    ]

    assert merge(found, True, False) == [entity(6, 9, score=0.9)]


@pytest.mark.parametrize("flat", [True, False])
def test_a_piece_at_the_edge_gives_way_to_the_whole(flat: bool) -> None:
    found = [
        Found([entity(8, 12, score=0.9)], 0, 12, True, False),
        Found([entity(8, 16, score=0.6)], 4, 20, False, True),
    ]

    assert merge(found, flat, False) == [entity(8, 16, score=0.6)]


def test_nested_spans_of_two_windows_stay_unless_flat() -> None:
    inner, outer = entity(6, 8, "city", 0.9), entity(5, 10, "team", 0.6)
    found = [Found([inner], 0, 12, True, False), Found([outer], 4, 20, False, True)]

    assert merge(found, False, False) == [outer, inner]
    assert merge(found, True, False) == [inner]


def test_several_labels_of_one_span_stay_where_they_are_wanted() -> None:
    one, other = entity(6, 8, "city", 0.9), entity(6, 8, "team", 0.6)
    found = [Found([one], 0, 12, True, False), Found([other], 4, 20, False, True)]

    assert merge(found, True, True) == [one, other]
    assert merge(found, True, False) == [one]


def test_one_window_keeps_what_its_model_found() -> None:
    found = [entity(6, 8, "city"), entity(5, 10, "team")]

    assert merge([Found(found, 0, 12, True, True)], True, False) == found
