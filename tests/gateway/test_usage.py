"""Usage: counted by key and model, handed over in sums, never lost to a database that is away."""

import httpx
import pytest

from catalog.models import Usage
from inference.lean import LeanHandler
from inference.usage import Amounts, UsageMeter
from project.application import record_usage
from tests.gateway.conftest import Setup
from tests.gateway.double import WorkerDouble

PATH = "/v1/encode/acme/fake"


async def test_sums_are_handed_over_by_key_and_model(
    client: httpx.AsyncClient, worker: WorkerDouble, app: LeanHandler, setup: Setup
) -> None:
    for text in ("one", "two words"):
        await client.post(f"{PATH}:query", json={"items": [text, "a b c"]})
    await client.post("/v1/encode/acme/nested", json={"items": ["x"]})
    await client.post(PATH, json={"items": []})  # refused, so not used
    assert app.gateway is not None
    await app.gateway.usage.hand_over()
    await app.gateway.usage.hand_over()
    assert setup.usage == [{("", "acme/fake"): (4, 9), ("", "acme/nested"): (1, 1)}]


async def test_what_cannot_be_recorded_is_kept(
    client: httpx.AsyncClient, worker: WorkerDouble, app: LeanHandler
) -> None:
    handed: list[Amounts] = []
    away = True

    def record(amounts: Amounts) -> None:
        if away:
            raise ConnectionError("the database is away")
        handed.append(amounts)

    assert app.gateway is not None
    app.gateway.usage = UsageMeter(record)
    await client.post(PATH, json={"items": ["one"]})
    await app.gateway.usage.hand_over()
    await client.post(PATH, json={"items": ["two words"]})
    away = False
    await app.gateway.usage.hand_over()
    assert handed == [{("", "acme/fake"): (2, 3)}]


@pytest.mark.django_db(transaction=True)
def test_gateway_adds_to_the_days_row() -> None:
    for _ in range(2):
        record_usage({("", "acme/fake"): (2, 3)})
    row = Usage.objects.get()
    assert (row.key, row.model, row.items, row.tokens) == ("", "acme/fake", 4, 6)
