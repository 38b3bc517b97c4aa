"""Which queues a worker takes from, decided from what was seen of them; no broker, no clock."""

from dataclasses import dataclass, field, replace

import pytest

from catalog.snapshot import Model, Snapshot
from protocol import names
from protocol.spec import ModelSpec
from workers.claiming import CLAIM_S, PATIENCE_S, Backlog, Claiming, Watch
from workers.claims import SETTLE_S, Standing
from workers.neighbours import Known, Neighbours, News
from workers.subscriptions import Subscriptions

EVERY_S = 0.2
A, B = (names.queue("default", model, "interactive") for model in ("org/a", "org/b"))
B_BULK = names.queue("default", "org/b", "bulk")
CATALOG = Snapshot(1, tuple(Model(ModelSpec(model, "fake", ("encode",))) for model in ("org/a", "org/b")))


@dataclass
class World:
    """A worker that has org/a, beside another worker; `now` is also when news was heard."""

    standing: Standing = field(default_factory=lambda: Standing(here=frozenset({"org/a"}), free=1 << 30))
    news: News = field(default_factory=lambda: News(heard=0.0, others=frozenset({"other"})))
    nudges: int = 0

    def __post_init__(self) -> None:
        subscriptions = Subscriptions("default")
        subscriptions.ask([A, B, B_BULK], CATALOG, 0.0)
        self.claiming = Claiming(subscriptions, lambda: self.standing, lambda: self.news, self._nudge)

    def _nudge(self) -> None:
        self.nudges += 1

    def claim(self, now: float) -> str | None:
        """With news of this moment."""
        self.news = replace(self.news, heard=now)
        return self.claiming.claim(now)

    def see(self, queue: str, messages: int, now: float, published: float | None = None) -> None:
        self.claiming.notice([queue], EVERY_S, now)
        self.claiming.see({queue: Backlog(messages, published)}, EVERY_S, now)

    def know(self, model: str, known: Known) -> None:
        self.news = replace(self.news, models={model: known})


def test_only_models_that_are_here_are_taken_at_once() -> None:
    claiming = World().claiming
    assert (claiming.takes(A, 0.0), claiming.takes(B, 0.0)) == (True, False)


def test_a_lone_worker_takes_everything_at_once() -> None:
    world = World(news=News(heard=0.0))
    assert world.claiming.takes(B, 0.0)


def test_what_nobody_has_is_claimed_after_a_moment() -> None:
    world = World()
    world.see(B, 1, 0.0)
    assert world.claim(SETTLE_S / 2) is None
    assert world.claim(SETTLE_S) == B
    assert world.claiming.takes(B, SETTLE_S)


def test_what_another_has_is_left_to_it_longer() -> None:
    world = World()
    world.know("org/b", Known(load_s=4.0, held_elsewhere=True))
    world.see(B, 1, 0.0)
    assert world.claim(0.5) is None
    assert world.claim(SETTLE_S + 1.0) == B


def test_a_queue_seen_empty_is_forgotten() -> None:
    world = World()
    world.see(B, 3, 0.0)
    world.see(B, 0, 0.1)
    assert world.claim(60.0) is None


def test_both_lanes_of_a_claimed_model_are_taken() -> None:
    world = World()
    world.see(B, 1, 0.0)
    world.claim(1.0)
    assert world.claiming.takes(B_BULK, 1.0)


def test_a_claim_that_came_to_nothing_ends() -> None:
    world = World()
    world.see(B, 1, 0.0)
    world.claim(1.0)
    assert not world.claiming.takes(B, 1.0 + CLAIM_S)


def test_one_claim_at_a_time_until_the_dispatcher_has_met_it() -> None:
    world = World(standing=Standing(free=1 << 30))
    world.see(A, 1, 0.0)
    world.see(B, 1, 0.0)
    first = world.claim(1.0)
    assert first is not None and world.claim(1.1) is None
    world.standing = Standing(here=frozenset({"org/a" if first == A else "org/b"}), free=1 << 30)
    world.see(first, 0, 1.2)
    assert world.claim(1.2) == (B if first == A else A)


def test_a_worker_that_can_load_nothing_claims_nothing() -> None:
    world = World(standing=Standing(can_load=False))
    world.see(B, 1, 0.0)
    assert world.claim(60.0) is None


def test_older_work_of_models_that_are_here_goes_first() -> None:
    world = World()
    world.see(A, 50, 0.0)
    world.see(B, 1, 1.0)
    assert world.claim(2.0) is None
    world.see(A, 0, 2.1)
    assert world.claim(2.2) == B


def test_a_claim_waits_for_fresh_news() -> None:
    world = World()
    world.see(B, 1, 0.0)
    assert world.claiming.claim(1.0) is None
    assert world.nudges == 1
    world.news = replace(world.news, heard=1.01)
    assert world.claiming.claim(1.3) == B


def test_without_news_work_is_taken_all_the_same() -> None:
    world = World()
    world.see(B, 1, 0.0)
    assert world.claiming.claim(1.0) is None
    assert world.claiming.claim(1.0 + PATIENCE_S / 2) is None
    assert world.claiming.claim(1.01 + PATIENCE_S) == B


def test_news_that_another_has_claimed_it_ends_a_claim() -> None:
    world = World()
    world.see(B, 1, 0.0)
    assert world.claiming.claim(0.2) is None
    world.know("org/b", Known(load_s=4.0, held_elsewhere=True))
    assert world.claim(0.25) is None


def test_a_queue_is_looked_at_after_a_moment_and_then_not_too_often() -> None:
    world = World()
    world.claiming.notice([B], EVERY_S, 0.0)
    assert world.claiming.due(8, SETTLE_S / 2) == []
    assert world.claiming.due(8, SETTLE_S) == [B]
    world.see(B, 0, SETTLE_S)
    world.claiming.notice([B], EVERY_S, SETTLE_S)
    assert world.claiming.due(8, 2 * SETTLE_S) == []
    assert world.claiming.due(8, SETTLE_S + EVERY_S) == [B]


def test_no_more_queues_are_looked_at_than_may_be_the_longest_overdue_first() -> None:
    world = World()
    world.claiming.notice([B], EVERY_S, 0.0)
    world.claiming.notice([A], EVERY_S, 1.0)
    assert world.claiming.due(1, 2.0) == [B]


def test_a_worker_that_left_is_noticed_once() -> None:
    world = World()
    world.claiming.somebody_left()
    world.news = News(heard=1.0, others=frozenset({"another"}))
    assert (world.claiming.somebody_left(), world.claiming.somebody_left()) == (True, False)


# -- how long the oldest message has waited --------------------------------------------------------------------

UNKNOWN = Known()
FAST = Known(rate=1000.0, cost=10.0)


def test_a_message_that_says_when_it_was_published_has_waited_since() -> None:
    watch = Watch(since=0.0, look_at=0.0, fell=0.0)
    watch.see(Backlog(5, published=990.0), 0.0)
    assert watch.waited_s(UNKNOWN, 3.0, wall=1000.0) == 10.0


@pytest.mark.parametrize("published", [None, 5000.0])
def test_without_a_credible_time_a_queue_that_nobody_takes_from_has_waited_since_it_was_noticed(
    published: float | None,
) -> None:
    watch = Watch(since=0.0, look_at=0.0, fell=0.0)
    watch.see(Backlog(5, published), 0.0)
    assert watch.waited_s(UNKNOWN, 3.0, wall=1000.0) == 3.0


def test_a_queue_that_moves_has_waited_as_long_as_its_holders_need_for_it() -> None:
    watch = Watch(since=0.0, look_at=0.0, fell=0.0)
    watch.see(Backlog(200), 1.0)
    watch.see(Backlog(150), 9.9)
    assert watch.waited_s(FAST, 10.0, wall=0.0) == pytest.approx(1.5)


def test_a_queue_that_moves_fast_has_hardly_waited_however_long_it_was_never_empty() -> None:
    watch = Watch(since=0.0, look_at=0.0, fell=0.0)
    watch.see(Backlog(3), 1.0)
    watch.see(Backlog(1), 59.9)
    assert watch.waited_s(FAST, 60.0, wall=0.0) == pytest.approx(0.1)


# -- what workers tell each other ------------------------------------------------------------------------------


def neighbour(name: str, redis_url: str = "redis://127.0.0.1:1/0", **models: Known) -> Neighbours:
    return Neighbours(redis_url, "default", name, lambda: models)


def heard(reader: Neighbours, writer: Neighbours, known: Known, written_at: float, read_at: float) -> Known | None:
    (raw,) = writer._written({"m": known}, written_at).values()
    return reader._read_one(raw, read_at)


def test_what_another_has_is_held_elsewhere_while_it_says_so() -> None:
    known = Known(size=7, load_s=3.0, rate=2.0, cost=5.0)
    reader, writer = neighbour("reader"), neighbour("writer")
    assert heard(reader, writer, known, 100.0, 101.0) == replace(known, held_elsewhere=True)
    assert heard(reader, writer, known, 100.0, 110.0) == known


def test_what_oneself_has_is_not_held_elsewhere() -> None:
    reader = neighbour("reader")
    assert heard(reader, reader, Known(), 100.0, 100.0) == Known()


@pytest.mark.parametrize(
    "raw", [b"no json", b"{}", b"[]", b"7", b"null", b'[1, "w", "x", 1, 1, 1]', b'["x", "w", 1, 1, 1, 1]']
)
def test_what_cannot_be_read_is_not_believed(raw: bytes) -> None:
    assert neighbour("reader")._read_one(raw, 0.0) is None


def test_the_work_in_a_queue_is_unknown_until_the_model_ran() -> None:
    assert Known().work_s(10) == 0.0
    assert FAST.work_s(100) == pytest.approx(1.0)
