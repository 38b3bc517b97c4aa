"""S073: damaged weights in the Hugging Face cache are fetched once more; those of an operator are not ours to drop."""

import logging
from pathlib import Path

import pytest

from protocol.errors import ModelLoadFailed
from protocol.spec import ModelSpec, Source
from tests.models import fake_hub
from tests.models.test_weights import Config, cache, hub, model_files
from workers.weights.resolve import resolve

__all__ = ["cache", "hub"]  # fixtures

SPEC = ModelSpec("org/model", "text_encoder", ("encode",), source=Source(repo="org/model", revision=fake_hub.COMMIT))


def cut_short(folder: Path) -> None:
    """As a disk that was full, or a machine that lost its power, leaves it."""
    file = (folder / "model.safetensors").resolve()
    file.write_bytes(file.read_bytes()[:-100])


def test_a_file_cut_short_is_named_and_fetched_once_more(
    tmp_path: Path, hub: fake_hub.Hub, caplog: pytest.LogCaptureFixture
) -> None:
    cut_short(resolve(SPEC, Config(tmp_path)))
    hub.asked.clear()
    with caplog.at_level(logging.WARNING, "shoal.weights"):
        folder = resolve(SPEC, Config(tmp_path))
    assert (folder / "model.safetensors").read_bytes() == model_files()["model.safetensors"]
    assert "damaged file dropped from the cache: model.safetensors" in caplog.text
    assert not any(path.endswith("tokenizer.json") for path in hub.asked)
    hub.asked.clear()
    resolve(SPEC, Config(tmp_path))
    assert hub.asked == []


def test_a_hub_whose_file_is_damaged_is_not_asked_for_ever(tmp_path: Path, hub: fake_hub.Hub) -> None:
    hub.files["model.safetensors"] = hub.files["model.safetensors"][:-100]
    with pytest.raises(ModelLoadFailed) as caught:
        resolve(SPEC, Config(tmp_path))
    assert caught.value.extra["error_class"] == "CORRUPT"
    assert sum(path.endswith("model.safetensors") for path in hub.asked) <= 3


def test_offline_says_that_the_cache_was_damaged(tmp_path: Path, hub: fake_hub.Hub) -> None:
    cut_short(resolve(SPEC, Config(tmp_path)))
    with pytest.raises(ModelLoadFailed, match=r"model\.safetensors of org/model at .* was damaged"):
        resolve(SPEC, Config(tmp_path, offline=True))
