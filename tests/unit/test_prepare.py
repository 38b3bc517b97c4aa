"""What a call's items may take in a worker's memory."""

import numpy as np
import pytest

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from workers import prepare
from workers.families import Parts, Prepared

IMAGE = {"images": [{"data": b"x"}]}


class Reader:
    """Makes 1,000 bytes of an image; remembers how many items it read."""

    def __init__(self) -> None:
        self.read = 0

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        self.read += len(payload.items)
        return [
            [Prepared({"pixels": np.zeros(1000, np.uint8), "side": 3}, 1)] if "images" in item else InvalidInput("no")
            for item in payload.items
        ]

    def finish(self, *_: object) -> dict[str, object]:
        return {}


def test_a_call_of_many_images_is_refused_before_they_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MOST_READ_BYTES", 20_000)
    reader = Reader()
    assert len(prepare._prepare_items(reader, Payload([IMAGE] * 20))) == 20
    reader = Reader()
    with pytest.raises(InputTooLong) as caught:
        prepare._prepare_items(reader, Payload([IMAGE] * 4096))
    assert caught.value.param == "items"
    assert reader.read == 32


def test_items_keep_their_order_and_their_errors() -> None:
    found = prepare._prepare_items(Reader(), Payload([IMAGE, {"text": "a"}] * 20))
    assert [isinstance(one, ShoalError) for one in found] == [False, True] * 20
