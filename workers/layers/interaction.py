"""Queries and texts that are read apart and compared afterwards: what preparing and forwards share about them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.errors import ShoalError
from workers.families import Parts, Prepared


def the_query(found: Parts | ShoalError) -> Prepared:
    """What was read of a query. Raises the error that it is, its `param` naming the query."""
    if isinstance(found, ShoalError):
        found.param = f"query.{found.param or 'text'}"
        raise found
    return found[0]


def with_query(query: Prepared, texts: Sequence[Parts | ShoalError]) -> list[Parts | ShoalError]:
    """Each text's part with the query's inputs as its `query`, and in them its `name`, that no other query has.

    Its cost is shared out among the texts; usage counts its tokens once, with the first text that could be read.
    """
    shared = -(-query.cost // max(len(texts), 1))
    pairs: list[Parts | ShoalError] = []
    counted = query.tokens
    asked = {**query.inputs, "name": _name(query.inputs)}
    for found in texts:
        if isinstance(found, ShoalError):
            pairs.append(found)
            continue
        [part] = found
        inputs = {**part.inputs, "query": asked}
        truncated = part.truncated or query.truncated
        pairs.append([Prepared(inputs, part.cost + shared, part.tokens + counted, truncated=truncated)])
        counted = 0
    return pairs


def with_queries(batch: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[int | None]]:
    """All that a forward must read: the batch, and behind it each query once, however many of its texts are there.

    The second answer says for each of the batch where its query stands.
    """
    texts = list(batch)
    places: dict[bytes, int] = {}
    found: list[int | None] = []
    for inputs in batch:
        query = inputs.get("query")
        if query is None:
            found.append(None)
            continue
        if query["name"] not in places:
            places[query["name"]] = len(texts)
            texts.append(query)
        found.append(places[query["name"]])
    return texts, found


def _name(query: Mapping[str, Any]) -> bytes:
    """The tokens are not enough: those of two images of one size are the same."""
    pixels = query.get("pixels")
    seen = int(query.get("seen", 0)).to_bytes(4)
    shown = b"" if pixels is None else hashlib.sha256(pixels.tobytes()).digest()
    ids: bytes = query["ids"].tobytes()
    return shown + seen + ids


def maxsim(query: Any, text: Any) -> float:
    """The sum over the query's rows of each one's best inner product with a row of the text; 0 for a text of none."""
    return float((query @ text.T).amax(1).sum()) if len(text) else 0.0
