"""Who loads what: the delay before a worker without the model takes its messages, by example and by property."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.claims import LONGEST_DELAY_S, SETTLE_S, Leaver, Offer, Standing, best_claim, claim_delay

SECONDS = st.floats(0, 1000)
OFFERS = st.builds(
    Offer,
    queue=st.uuids().map(str),
    waited_s=SECONDS,
    backlog_s=SECONDS,
    load_s=st.floats(0.01, 100),
    lost_s=st.one_of(SECONDS, st.just(math.inf)),
    lane=st.sampled_from([0, 1]),
    held_elsewhere=st.booleans(),
)


@given(offer=OFFERS)
def test_a_delay_is_never_nothing_and_never_for_ever(offer: Offer) -> None:
    assert SETTLE_S <= claim_delay(offer) <= LONGEST_DELAY_S


@given(offer=OFFERS, longer=SECONDS)
def test_a_delay_grows_with_what_the_load_costs(offer: Offer, longer: float) -> None:
    assert claim_delay(dataclasses.replace(offer, load_s=offer.load_s + longer)) >= claim_delay(offer)
    assert claim_delay(dataclasses.replace(offer, lost_s=offer.lost_s + longer)) >= claim_delay(offer)


@given(offer=OFFERS, more=SECONDS)
def test_a_delay_shrinks_with_the_backlog(offer: Offer, more: float) -> None:
    assert claim_delay(dataclasses.replace(offer, backlog_s=offer.backlog_s + more)) <= claim_delay(offer)


@given(offer=OFFERS)
def test_what_nobody_has_is_taken_no_later_than_what_somebody_has(offer: Offer) -> None:
    held = dataclasses.replace(offer, held_elsewhere=True)
    nowhere = dataclasses.replace(offer, held_elsewhere=False)
    assert claim_delay(nowhere) <= claim_delay(held)


@given(offers=st.lists(OFFERS, max_size=8), pressing=SECONDS)
def test_a_claim_has_waited_its_delay_and_longer_than_what_presses_here(offers: list[Offer], pressing: float) -> None:
    taken = best_claim(offers, pressing)
    assert taken is None or 8 * (taken.waited_s - claim_delay(taken)) >= pressing


@given(offer=OFFERS, pressing=SECONDS)
def test_no_live_message_waits_for_ever(offer: Offer, pressing: float) -> None:
    late = dataclasses.replace(offer, lane=0, waited_s=LONGEST_DELAY_S + pressing + 0.001)
    assert best_claim([late], pressing) is late


def test_of_two_queues_the_one_that_waits_longer_beyond_its_delay_is_taken() -> None:
    old, cheap = Offer("old", waited_s=3.0, lost_s=2.9), Offer("cheap", waited_s=2.0)
    assert best_claim([old, cheap], pressing=0.0) is cheap


def test_an_idle_worker_takes_at_once_what_nobody_has() -> None:
    offer = Offer("q", waited_s=SETTLE_S)
    assert best_claim([offer], pressing=0.0) is offer


def test_a_worker_with_older_work_leaves_a_queue_to_others() -> None:
    assert best_claim([Offer("q", waited_s=1.0)], pressing=8 * 2.0) is None


@pytest.mark.parametrize(("lane", "taken"), [(0, True), (1, False)])
def test_bulk_work_pushes_nobody_out_where_another_has_its_model(lane: int, taken: bool) -> None:
    offer = Offer("q", waited_s=900.0, lost_s=1.0, lane=lane, held_elsewhere=True)
    assert (best_claim([offer], pressing=0.0) is offer) is taken


def test_bulk_work_that_nobody_has_is_loaded_at_last() -> None:
    offer = Offer("q", waited_s=900.0, lost_s=1.0, lane=1)
    assert best_claim([offer], pressing=0.0) is offer


def test_what_is_lost_counts_only_those_that_must_make_room() -> None:
    standing = Standing(free=2, leavers=(Leaver(4, 0.5), Leaver(4, 1.0), Leaver(4, 8.0)))
    assert [standing.lost_s(size) for size in (2, 3, 10, 15)] == [0.0, 0.5, 1.5, math.inf]
