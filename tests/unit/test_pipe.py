"""The pipe to an engine holds what models read, however large; an engine that hears nothing any more ends."""

import socket
import threading
from typing import Any

import numpy as np
import pytest

from protocol import codec
from workers.engine import pipe
from workers.engine.main import Engine

LARGE = 101 << 20  # msgpack's own readers refuse 100 MiB


def test_an_array_of_more_than_100_mib_crosses() -> None:
    image = np.zeros(LARGE, np.uint8)
    image[-1] = 7
    sent = pipe.frame({"op": "forward", "image": image.reshape(101, -1, 4)})
    [message] = pipe.FrameBuffer().feed(sent)
    assert message["image"].shape == (101, 1 << 18, 4) and message["image"][-1, -1, -1] == 7


@pytest.mark.parametrize("shape", [(), (0,), (1,) * 32])
def test_arrays_of_every_shape_come_back(shape: tuple[int, ...]) -> None:
    assert codec.unpack(codec.pack(np.zeros(shape))).shape == shape


def test_more_than_a_frame_holds_is_unsendable(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(bytes):
        def __len__(self) -> int:
            return 1 << 32

    monkeypatch.setattr(codec, "pack", lambda message: Endless())
    with pytest.raises(pipe.Unsendable):
        pipe.frame({"op": "forward"})


def test_an_engine_ends_with_the_thread_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker starts another then; one that ran on without reading would keep everybody waiting."""

    def read(sock: socket.socket) -> Any:
        raise ValueError("unreadable")

    ours, its = socket.socketpair()
    monkeypatch.setattr(pipe, "read_messages", read)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with ours, its:
        running = threading.Thread(target=Engine(its, "cpu").run, daemon=True)
        running.start()
        running.join(10)
        assert not running.is_alive()
