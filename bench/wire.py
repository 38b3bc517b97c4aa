"""What the load generator says and hears: single-text requests as bytes, and the vectors of a response."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import msgpack
import numpy as np


class Dialect(Protocol):
    """One public wording of encode."""

    def request(self, url: str, model: str, texts: str | Sequence[str], key: str | None = None) -> bytes: ...

    def vectors(self, body: bytes) -> list[np.ndarray]:
        """The vectors of a good response, in order. Raises ValueError or KeyError when it is none."""
        ...


@dataclass(frozen=True, slots=True)
class Native:
    """As the published SDK asks: MessagePack both ways, arrays as raw bytes."""

    def request(self, url: str, model: str, texts: str | Sequence[str], key: str | None = None) -> bytes:
        items = [{"text": text} for text in _several(texts)]
        headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
        return http_request(url, f"/v1/encode/{quote(model)}", msgpack.packb({"items": items}), headers, key)

    def vectors(self, body: bytes) -> list[np.ndarray]:
        items = msgpack.unpackb(body, strict_map_key=False)["items"]
        return [array(item["dense"]["values"]) for item in items]


@dataclass(frozen=True, slots=True)
class OpenAI:
    """As the `openai` package asks: JSON, vectors in base64."""

    def request(self, url: str, model: str, texts: str | Sequence[str], key: str | None = None) -> bytes:
        body = {"model": model, "input": texts, "encoding_format": "base64"}
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        return http_request(url, "/v1/embeddings", json.dumps(body).encode(), headers, key)

    def vectors(self, body: bytes) -> list[np.ndarray]:
        data = json.loads(body)["data"]
        return [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in data]


DIALECTS: Mapping[str, Dialect] = {"native": Native(), "openai": OpenAI()}


def array(wire: Mapping[bytes, Any]) -> np.ndarray:
    """The array in a NumPy-marked map of the native wire. Raises KeyError or ValueError when it is none."""
    if wire[b"nd"] is not True or wire[b"kind"] != b"":
        raise ValueError("not a NumPy-marked array")
    return np.frombuffer(wire[b"data"], wire[b"type"]).reshape(wire[b"shape"])


def http_request(
    url: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    method: str = "POST",
) -> bytes:
    """A whole HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def _several(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
