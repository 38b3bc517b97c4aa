"""The contract, held by the families whose own tests stand elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract, ExtractContract
from workers.families import fake

TEXTS = ["one", "red boat", "a red boat on water", "two three four five six", "six " * 9, "many words " * 20]
ITEMS = [{"text": text} for text in TEXTS]


class TestFakeEncoder(Contract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        return ModelSpec("org/fake", "fake", ("encode",), outputs=("dense",), dims={"dense": 8})

    @classmethod
    def payload(cls) -> Payload:
        return Payload(ITEMS)

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        vectors = [fake.vector(item["text"], 8) for item in payload.items]
        return [{"dense": {"dims": 8, "dtype": "float32", "values": vector}} for vector in vectors]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"images": [{"data": b"x"}]}


class TestFakeRanker(TestFakeEncoder):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        return ModelSpec("org/fake", "fake", ("score",))

    @classmethod
    def payload(cls) -> Payload:
        return Payload(ITEMS, query={"text": "a red boat"})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        assert payload.query is not None
        return [{"score": fake.overlap(payload.query["text"], item["text"])} for item in payload.items]


class TestFakeReader(TestFakeEncoder, ExtractContract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        return ModelSpec("org/fake", "fake", ("extract",), max_tokens=4)

    @classmethod
    def payload(cls) -> Payload:
        return Payload(ITEMS, {"labels": ["boat", "six"]})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        return [{"entities": _found(item["text"])} for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [1]}


def _found(text: str) -> list[dict[str, Any]]:
    found, at = [], 0
    for word in text.split(" "):
        if word in ("boat", "six"):
            found.append({"text": word, "label": word, "score": 1.0, "start": at, "end": at + len(word)})
        at += len(word) + 1
    return found


class TestTextEncoder(Contract):
    tolerance = 1e-5

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        tiny.checkpoint(folder, "bert", {"pooling_mode_mean_tokens": True}, max_tokens=64)
        return ModelSpec("org/tiny", "text_encoder", ("encode",), outputs=("dense",), max_tokens=64)

    @classmethod
    def payload(cls) -> Payload:
        words = tiny.words()
        return Payload([{"text": " ".join(words[:count])} for count in (1, 3, 8, 20, 40)])

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu")
        rows = [model.encode(item["text"]) for item in payload.items]
        return [{"dense": {"dims": len(row), "dtype": "float32", "values": np.asarray(row)}} for row in rows]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [10_000]}
