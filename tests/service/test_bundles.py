"""Models of two bundles on one worker; the bundle `transformers4` for real, through HTTP."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bench.system import Serving
from tests.conftest import missing
from tests.models import own_code, tiny
from tests.service.harness import ROOT, Fleet, Gateway, fake_model, wait_until

NAME = "transformers4"
CACHE = Path.home() / ".cache" / "shoal-tests" / "bundles"
MINUTES = 15
TEXTS = ["babo", "babo baco bado", "bafo bago " * 9, "unheard of"]

# What the checkpoint's own library says of its own code: the mean of each text's tokens.
REFERENCE = """
import json, sys, torch, transformers
folder, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
with torch.no_grad():
    rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).tolist() for text in texts]
print(json.dumps([transformers.__version__, rows]))
"""


def test_a_missing_bundle_is_told_by_name_and_stops_nobody(redis_fleet: Fleet, redis_gateway: Gateway) -> None:
    model, mate = fake_model("org/a"), fake_model("org/b")
    model = replace(model, spec=replace(model.spec, bundle=NAME))
    redis_gateway.serve(model, mate)
    worker = redis_fleet.start()
    refused, answered = redis_gateway.send(model), redis_gateway.send(mate)
    found = redis_gateway.collect([refused, answered])
    error = found[refused].error or {}
    assert (error["code"], error["error_class"]) == ("MODEL_LOAD_FAILED", "BUNDLE")
    assert f"run `./shoal bundle install {NAME}`" in error["message"]
    assert found[answered].error is None
    beat = wait_until(lambda: redis_gateway.beat(worker).get("engines") and redis_gateway.beat(worker))
    assert [engine["bundle"] for engine in beat["engines"]] == ["base"]


def called(serving: Serving, model: str, texts: Sequence[str] = TEXTS) -> tuple[int, Any]:
    body = json.dumps({"items": [{"text": text} for text in texts]}).encode()
    request = urllib.request.Request(f"{serving.url}/v1/encode/{model}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def vectors(serving: Serving, model: str) -> np.ndarray:
    serving.warm(model)
    status, body = called(serving, model)
    assert status == 200, body
    return unit([item["dense"]["values"] for item in body["items"]])


def unit(rows: Any) -> np.ndarray:
    made = np.asarray(rows, np.float64)
    scaled: np.ndarray = made / np.linalg.norm(made, axis=1, keepdims=True)
    return scaled


def engines(serving: Serving) -> dict[str, int]:
    """Bundle → pid, of the one worker."""
    (beat,) = serving.beats()
    return {engine["bundle"]: engine["pid"] for engine in beat["engines"]}


def write_entry(folder: Path, name: str, **fields: Any) -> None:
    entry = {"id": f"tests/{name}", "primitives": ["encode"], "outputs": ["dense"], **fields}
    (folder / f"{name}.yaml").write_text(json.dumps(entry))


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder of bundles with `transformers4` in it, kept between sessions."""
    command = [sys.executable, "-m", "project.cli", "bundle", "install", NAME]
    environment = {**os.environ, "SHOAL_BUNDLES": str(CACHE)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60 * MINUTES
    )
    if done.returncode:
        missing(f"the bundle {NAME} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return CACHE


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        "bert": tiny.checkpoint(folder / "bert", "bert", {"pooling_mode": "mean"}),
        "own": own_code.checkpoint(folder / "own", needs_four=True),
    }


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory, installed: Path, checkpoints: Mapping[str, Path]
) -> Iterator[Serving]:
    """The whole product with the same two checkpoints in the base and in `transformers4`."""
    entries = tmp_path_factory.mktemp("entries")
    for bundle in ("base", NAME):
        plain = {"family": "text_encoder", "bundle": bundle}
        approved = {"repo": "tests/own", "revision": own_code.COMMIT, "folder": str(checkpoints["own"])}
        write_entry(entries, f"bert-{bundle}", source={"folder": str(checkpoints["bert"])}, **plain)
        write_entry(entries, f"own-{bundle}", source=approved, remote_code=True, load={"pooling": "mean"}, **plain)
    settings = {"SHOAL_CATALOG": str(entries), "SHOAL_BUNDLES": str(installed), "SHOAL_OFFLINE": "1"}
    serving = Serving(tmp_path_factory.mktemp("shoal"), settings)
    yield serving
    serving.stop()


@pytest.mark.heavy
@pytest.mark.timeout(60 * MINUTES + 120)
def test_two_bundles_give_one_checkpoint_the_same_vectors(serving: Serving) -> None:
    base, four = vectors(serving, "tests/bert-base"), vectors(serving, f"tests/bert-{NAME}")
    assert np.abs(base - four).max() < 1e-6


@pytest.mark.heavy
@pytest.mark.timeout(60 * MINUTES + 120)
def test_two_bundles_stand_in_one_workers_ledger(serving: Serving) -> None:
    for model in ("tests/bert-base", f"tests/bert-{NAME}"):
        serving.warm(model)
    serving.next_beat()
    (beat,) = serving.beats()
    held = {model["model"]: model["bytes"] for model in beat["models"] if model["state"] == "loaded"}
    assert {"tests/bert-base", f"tests/bert-{NAME}"} <= held.keys()
    assert beat["memory"]["used"] == sum(held.values()) > 0
    assert engines(serving).keys() >= {"base", NAME}


@pytest.mark.heavy
@pytest.mark.timeout(60 * MINUTES + 120)
def test_code_written_for_transformers_4_runs_in_its_bundle(
    serving: Serving, installed: Path, checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    python = installed / NAME / "current" / "env" / "bin" / "python"
    command = [str(python), "-c", REFERENCE, str(checkpoints["own"]), json.dumps(TEXTS)]
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    version, rows = json.loads(done.stdout.splitlines()[-1])
    assert version.startswith("4.")
    assert np.abs(vectors(serving, f"tests/own-{NAME}") - unit(rows)).max() < 1e-6


@pytest.mark.heavy
@pytest.mark.timeout(60 * MINUTES + 120)
def test_the_base_refuses_such_code_and_goes_on(serving: Serving) -> None:
    serving.warm("tests/bert-base")
    status, body = called(serving, "tests/own-base")
    assert (status, body["error"]["code"]) == (502, "MODEL_LOAD_FAILED")
    assert called(serving, "tests/bert-base")[0] == 200


@pytest.mark.heavy
@pytest.mark.timeout(60 * MINUTES + 120)
@pytest.mark.parametrize(("killed", "kept"), [(NAME, "base"), ("base", NAME)])
def test_a_killed_engine_leaves_the_other_bundles(serving: Serving, killed: str, kept: str) -> None:
    before = {bundle: vectors(serving, f"tests/bert-{bundle}") for bundle in (killed, kept)}
    serving.next_beat()
    pids = engines(serving)
    os.kill(pids[killed], signal.SIGKILL)
    assert called(serving, f"tests/bert-{kept}")[0] == 200
    assert np.array_equal(vectors(serving, f"tests/bert-{kept}"), before[kept])
    assert np.abs(vectors(serving, f"tests/bert-{killed}") - before[killed]).max() < 1e-6
    wait_until(lambda: engines(serving).get(killed, pids[killed]) != pids[killed])
    assert engines(serving)[kept] == pids[kept]
    assert psutil.pid_exists(pids[kept])


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_a_missing_bundle_is_a_typed_answer(tmp_path: Path) -> None:
    entries = tmp_path / "entries"
    entries.mkdir()
    write_entry(entries, "there", family="fake", dims={"dense": 8})
    write_entry(entries, "missing", family="fake", dims={"dense": 8}, bundle=NAME)
    settings = {"SHOAL_CATALOG": str(entries), "SHOAL_BUNDLES": str(tmp_path / "none"), "SHOAL_OFFLINE": "1"}
    serving = Serving(tmp_path / "data", settings)
    try:
        status, body = called(serving, "tests/missing")
        again, _ = called(serving, "tests/missing")
        assert (status, again, body["error"]["code"]) == (502, 502, "MODEL_LOAD_FAILED")
        assert body["error"]["error_class"] == "BUNDLE"
        assert f"`./shoal bundle install {NAME}`" in body["error"]["message"]
        serving.warm("tests/there")
    finally:
        serving.stop()
