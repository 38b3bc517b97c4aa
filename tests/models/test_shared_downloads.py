"""S073: several workers of one machine want the same model at once, and one of them dies while it fetches it."""

import multiprocessing
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from protocol.spec import ModelSpec, Source
from tests.models import fake_hub
from tests.models.test_weights import Config, model_files
from workers.weights.resolve import resolve

SPEC = ModelSpec("org/model", "text_encoder", ("encode",), source=Source(repo="org/model", revision=fake_hub.COMMIT))


def _fetch(data: Path, found: Any) -> None:
    found.put(str(resolve(SPEC, Config(data))))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the processes that are started: an empty cache, and nothing of this machine's."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.mark.usefixtures("environment")
def test_the_others_fetch_what_the_dead_one_left_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    with fake_hub.serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.files, hub.pause = model_files(), threading.Event()
        first: BaseProcess = context.Process(target=_fetch, args=(tmp_path, found))
        first.start()
        assert hub.halfway.wait(60)
        others = [context.Process(target=_fetch, args=(tmp_path, found)) for _ in range(3)]
        for other in others:
            other.start()
        first.kill()
        first.join()
        hub.pause.set()
        folders = {found.get(timeout=60) for _ in others}
        for other in others:
            other.join()
    [folder] = folders
    assert {file.name: file.read_bytes() for file in Path(folder).iterdir()} == model_files()
    # One of the three fetches what the dead one had not; who comes later finds all there, and asks for nothing.
    assert hub.fetched.count("model.safetensors") == 2
    assert hub.fetched.count("config.json") <= 2
