"""Weights of torch.save become safetensors, number by number, and nothing that a pickle says is run."""

import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from protocol.errors import ModelLoadFailed
from protocol.spec import ModelSpec, Source
from tests.models import fake_hub, tiny
from tests.models.test_m3 import PICKLES, published
from workers.families.alone import Alone
from workers.weights import convert_torch, files, pickled
from workers.weights.resolve import resolve

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


def spec(**load: Any) -> ModelSpec:
    source = Source(repo="org/model", revision=fake_hub.COMMIT)
    return ModelSpec("org/model", "text_encoder", ("encode",), source=source, load={"pooling": "cls", **load})


class Config:
    models_folder = None
    offline = False

    def __init__(self, data: Path) -> None:
        self.data = data


def test_every_number_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = torch.randn(40, 30)
    tensors = {str(dtype): (torch.randn(5, 3) * 9).to(dtype) for dtype in DTYPES}
    tensors |= {"part": whole[3:9, 4:7], "turned": whole.T, "none": torch.zeros(0, 4), "one": torch.tensor(3.0)}
    tensors |= {"same": whole, "parameter": torch.nn.Parameter(whole[0])}
    torch.save(tensors, tmp_path / "a.bin")

    convert_torch.convert(tmp_path / "a.bin", tmp_path / "a.safetensors")

    files.header(tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


class Order:
    """What a pickle of an attacker holds."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def archive(file: Path, described: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a/data.pkl", described)
        for name, content in members.items():
            made.writestr(f"a/data/{name}", content)
    return file


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    torch.save({"weight": Order(trace)}, tmp_path / "a.bin")
    with pytest.raises(files.Damaged, match="names code"):
        convert_torch.read(tmp_path / "a.bin")
    assert not trace.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "os.system", "torch.load", "collections.Counter", "torch._utils.x"])
def test_no_other_name_is_looked_up(tmp_path: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    described = b"\x80\x02c" + f"{module}\n{function}\n".encode() + b"."
    with pytest.raises(files.Damaged):
        convert_torch.read(archive(tmp_path / "a.bin", described))


@pytest.mark.parametrize(
    "found", [3, [torch.zeros(2)], {"a": 3}, {"a": {"b": torch.zeros(2)}}, {3: torch.zeros(2)}, OrderedDict(a=None)]
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, found: Any) -> None:
    torch.save(found, tmp_path / "a.bin")
    with pytest.raises(files.Damaged):
        convert_torch.read(tmp_path / "a.bin")


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(0, (3,), (1,)), (2, (1,), (1,)), (-1, (1,), (1,)), (0, (2, 2), (1, 1)), (0, (1 << 40,), (1,)), (0, (2,), (-1,))],
)
def test_a_tensor_stays_inside_its_numbers(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    storage = (np.zeros(2, np.uint32), "F32")
    with pytest.raises(files.Damaged):
        convert_torch._tensor(storage, offset, shape, strides, False, None)


def test_a_tensor_is_no_larger_than_its_numbers() -> None:
    """One number that is repeated a trillion times would fill the disk."""
    with pytest.raises(files.Damaged):
        convert_torch._tensor((np.zeros(2, np.uint32), "F32"), 0, (1 << 40,), (0,), False, None)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, keep: float) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.bin")
    whole = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(files.Damaged):
        convert_torch.read(tmp_path / "a.bin")


def test_a_pickle_of_before_zips_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(files.Damaged):
        convert_torch.read(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(pickle.dumps({"a": 3}))
    with pytest.raises(files.Damaged):
        convert_torch.read(tmp_path / "b.bin")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_hub.Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with fake_hub.serve() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield served


def test_the_hub_is_asked_for_the_pickles_that_an_entry_names(tmp_path: Path, hub: fake_hub.Hub) -> None:
    published(tmp_path / "made")
    hub.files = {file.name: file.read_bytes() for file in (tmp_path / "made").iterdir()}
    wanted = spec(pickles=PICKLES)

    folder = resolve(wanted, Config(tmp_path / "data"))

    assert set(PICKLES) <= set(hub.fetched)
    hub.fetched.clear()
    assert resolve(wanted, Config(tmp_path / "data")) == folder
    assert hub.fetched == []
    assert sorted(file.name for file in folder.glob("*.safetensors")) == [
        "colbert_linear.safetensors",
        "model.safetensors",
        "sparse_linear.safetensors",
    ]
    assert not [*folder.glob("*.bin"), *folder.glob("*.pt")]
    assert Alone(wanted, folder).model.bytes > 0


def test_damaged_pickles_are_a_failure_that_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    published(folder)
    (folder / PICKLES[1]).write_bytes(b"PK nothing")
    with pytest.raises(ModelLoadFailed, match=r"sparse_linear\.pt"):
        pickled.converted(spec(pickles=PICKLES), folder, tmp_path / "cache")
    assert not [file for file in (tmp_path / "cache").iterdir() if file.is_dir()]


@pytest.mark.parametrize("names", ["pytorch_model.bin", ["../a.bin"], ["a/b.pt"], ["model.safetensors"], [3]])
def test_names_that_are_no_pickles_of_its_folder_are_refused(tmp_path: Path, names: Any) -> None:
    with pytest.raises(ModelLoadFailed, match="pickles"):
        pickled.converted(spec(pickles=names), tmp_path, tmp_path / "cache")


def test_a_folder_that_has_safetensors_is_taken_as_it_is(tmp_path: Path) -> None:
    published(tmp_path)
    tiny.library.AutoModel.from_config(tiny.config("xlm-roberta")).save_pretrained(tmp_path)
    assert pickled.converted(spec(pickles=PICKLES[:1]), tmp_path, tmp_path / "cache") == tmp_path
