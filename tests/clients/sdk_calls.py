"""Calls made with the published `sie-sdk`, unmodified, in an environment of its own (it wants Python 3.12).

    python sdk_calls.py URL CALL...

prints one JSON line per call: what came back, or the error it raised, and how often the client retried; without
arguments, the names of all calls. Imports nothing of Shoal. The same calls are recorded against a stub (`record.py`)
and run against the product (`test_sdk_live.py`).
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from sie_sdk import SIEAsyncClient, SIEClient

MODEL = "shoal-tests/minilm"
FAULTS = "shoal-tests/faults"
RANKER = "shoal-tests/ranker"
READER = "shoal-tests/reader"
TINY_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f000500"
    "01ff56c72f0d0000000049454e44ae426082"
)
PATIENCE_S = 20.0  # the client's own default is a quarter of an hour


def encode(client: SIEClient, items: Any, model: str = MODEL, **options: Any) -> Any:
    return client.encode(model, items, provision_timeout_s=PATIENCE_S, **options)


def encode_async(url: str, items: Any) -> Any:
    async def call() -> Any:
        async with SIEAsyncClient(url) as client:
            return await client.encode(MODEL, items, provision_timeout_s=PATIENCE_S)

    return asyncio.run(call())


CALLS: dict[str, Callable[[SIEClient], Any]] = {
    "single": lambda c: encode(c, {"text": "hello world"}),
    "list": lambda c: encode(c, [{"id": "a", "text": "one"}, {"text": "two words"}, {"id": "c", "text": "ünïcode ☃"}]),
    "many": lambda c: encode(c, [{"text": f"text {number}"} for number in range(300)]),
    "async_list": lambda c: encode_async(c.base_url, [{"id": "a", "text": "one"}, {"text": "two words"}]),
    "float16": lambda c: encode(c, {"text": "hello"}, output_dtype="float16"),
    "int8": lambda c: encode(c, {"text": "hello"}, output_dtype="int8"),
    "uint8": lambda c: encode(c, {"text": "hello"}, output_dtype="uint8"),
    "binary": lambda c: encode(c, {"text": "hello"}, output_dtype="binary"),
    "ubinary": lambda c: encode(c, {"text": "hello"}, output_dtype="ubinary"),
    "query": lambda c: encode(c, {"text": "hello"}, is_query=True),
    "document": lambda c: encode(c, {"text": "hello"}, is_query=False),
    "instruction": lambda c: encode(c, {"text": "hello"}, instruction="find what answers this"),
    "output_types": lambda c: encode(c, {"text": "hello"}, output_types=["dense"]),
    "options": lambda c: encode(c, {"text": "hello"}, options={"normalize": True, "overflow_policy": "truncate_text"}),
    "profile_option": lambda c: encode(c, {"text": "hello"}, options={"profile": "half"}),
    "profile_id": lambda c: encode(c, {"text": "hello"}, model=MODEL + ":half"),
    "metadata": lambda c: encode(c, {"text": "hello", "metadata": {"page": 3}}),
    "multivector_item": lambda c: encode(c, {"text": "hello", "multivector": np.ones((2, 3), np.float32)}),
    "image": lambda c: encode(c, {"images": [{"data": TINY_PNG, "format": "png"}]}),
    "empty_text": lambda c: encode(c, {"text": ""}),
    "too_long": lambda c: encode(c, {"text": "word " * 300}, options={"overflow_policy": "error"}),
    "no_items": lambda c: encode(c, []),
    "bad_option": lambda c: encode(c, {"text": "hello"}, options={"normalise": True}),
    "bad_dtype": lambda c: encode(c, {"text": "hello"}, output_dtype="float12"),
    "sparse_of_dense": lambda c: encode(c, {"text": "hello"}, output_types=["sparse"]),
    "unknown_model": lambda c: encode(c, {"text": "hello"}, model="shoal-tests/minilmm"),
    "broken_forward": lambda c: encode(c, {"text": "boom"}, model=FAULTS),
    "not_finite": lambda c: encode(c, {"text": "zzznan"}, model=FAULTS),
    "cold": lambda c: encode(c, {"text": "hello"}, model="shoal-tests/slow"),
    "cannot_load": lambda c: encode(c, {"text": "hello"}, model="shoal-tests/broken"),
    "score": lambda c: c.score(
        RANKER,
        {"id": "q", "text": "a red boat"},
        [{"id": "far", "text": "green"}, {"text": "a red boat"}, {"id": "near", "text": "a red car"}],
        instruction="what floats",
    ),
    "score_images": lambda c: c.score(RANKER, {"text": "a"}, [{"images": [{"data": TINY_PNG, "format": "png"}]}]),
    "score_of_encoder": lambda c: c.score(MODEL, {"text": "a"}, [{"text": "b"}]),
    "extract": lambda c: c.extract(
        READER, [{"id": "a", "text": "one boat, two boat three"}, {"text": "none"}], labels=["boat", "three"]
    ),
    "extract_media": lambda c: c.extract(
        READER, {"text": "boat", "images": [{"data": TINY_PNG, "format": "png"}]}, labels=["boat"]
    ),
    "extract_document": lambda c: c.extract(READER, {"document": b"%PDF-1.7"}),
    "extract_partly": lambda c: c.extract(
        READER, [{"text": "boat boom"}, {"text": "boat"}], labels=["boat"], options={"overflow_policy": "truncate"}
    ),
    "extract_bad_option": lambda c: c.extract(READER, {"text": "boat"}, options={"threshold": 2}),
    "extract_unread_option": lambda c: c.extract(READER, {"text": "boat"}, options={"threshold": 0.5}),
    "list_models": lambda c: [model["name"] for model in c.list_models()],
    "get_model": lambda c: dict(c.get_model(MODEL)),
    "get_model_unknown": lambda c: c.get_model("shoal-tests/minilmm"),
    "capacity": lambda c: dict(c.get_capacity()),
}


def plain(value: Any) -> Any:
    """Anything the SDK returns, as JSON can hold it; arrays keep their dtype and shape."""
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def run(client: SIEClient, name: str) -> dict[str, Any]:
    try:
        outcome = {"result": plain(CALLS[name](client))}
    except Exception as error:  # whatever a caller would meet is the outcome
        facts = {key: plain(value) for key, value in vars(error).items() if isinstance(value, str | int | float)}
        outcome = {"error": {**facts, "type": type(error).__name__, "message": str(error)}}
    return {"call": name, **outcome, "retries": client.last_retry_count}


def main(url: str, names: list[str]) -> None:
    with SIEClient(url) as client:
        for name in names or CALLS:
            print(json.dumps(run(client, name)), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], sys.argv[2:])
    else:
        print(json.dumps(list(CALLS)))
