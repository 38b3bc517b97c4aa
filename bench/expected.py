"""Texts with the vectors they should have, and the check that finds an error, a lost and a swapped reply."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench import oracle
from bench.load import LOST, Check
from bench.wire import Dialect

SAME = 0.9999  # cosine; different texts of one model stay far below
RETRYABLE = {
    "RATE_LIMITED",
    "QUEUE_FULL",
    "QUEUE_UNAVAILABLE",
    "PROVISIONING",
    "MODEL_LOADING",
    "RESOURCE_EXHAUSTED",
    "transport_failure",
    "GATEWAY_TIMEOUT",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """`vectors` has one unit row per text."""

    texts: Sequence[str]
    vectors: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Expected":
        return cls(texts, oracle.vectors(texts))

    def check(self, dialect: Dialect, may_be_refused: bool = False) -> Check:
        """For `load`: the right vector, or, where allowed, an error that tells the client to come back."""

        def check(index: int, status: int, body: bytes) -> str | None:
            if status == 200:
                return self._compare(index, dialect.vectors(body))
            if may_be_refused and status != LOST and json.loads(body)["error"]["code"] in RETRYABLE:
                return None
            return f"text {index}: " + (f"status {status}: {body[:300]!r}" if status else "connection lost")

        return check

    def _compare(self, index: int, found: Sequence[np.ndarray]) -> str | None:
        if len(found) != 1:
            return f"text {index}: {len(found)} vectors"
        cosine = float(found[0] @ self.vectors[index])
        if cosine > SAME:
            return None
        nearest = int(np.argmax(self.vectors @ found[0]))
        return f"text {index}: cosine {cosine:.5f}; nearest is the vector of text {nearest}"
