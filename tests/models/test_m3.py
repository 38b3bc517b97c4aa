"""BGE-M3 against the formulas of its authors, computed text by text, from files as they publish them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import InputTooLong, InvalidInput, ModelLoadFailed
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract
from workers.families.alone import Alone
from workers.weights import pickled

WORDS = tiny.words()
TEXTS = [" ".join(WORDS[start : start + count]) for start, count in enumerate((1, 3, 8, 20, 40))]
TEXTS[2] += " " + TEXTS[2]  # words that come again
PICKLES = ["pytorch_model.bin", "sparse_linear.pt", "colbert_linear.pt"]
WEIGHTS = {"dense": 0.4, "sparse": 0.2, "multivector": 0.4}


def spec(**load: Any) -> ModelSpec:
    outputs = ("dense", "sparse", "multivector")
    return ModelSpec("org/m3", "m3", ("encode", "score"), outputs=outputs, load={"pickles": PICKLES, **load})


def published(folder: Path) -> None:
    """As on the hub: weights as torch.save writes them."""
    torch.manual_seed(0)
    model = tiny.library.AutoModel.from_config(tiny.config("xlm-roberta"))
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    torch.save(torch.nn.Linear(tiny.WIDTH, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(tiny.WIDTH, 24).half().state_dict(), folder / "colbert_linear.pt")
    tiny.tokenizer("xlm-roberta", folder)


def theirs(folder: Path, text: str) -> dict[str, Any]:
    """The three outputs, by the book."""
    from safetensors.torch import load_file

    tokenizer = tiny.library.AutoTokenizer.from_pretrained(folder)
    model = tiny.library.AutoModel.from_pretrained(folder).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = model(ids).last_hidden_state[0]
        sparse, colbert = (load_file(folder / f"{name}_linear.safetensors") for name in ("sparse", "colbert"))
        weights = torch.relu(states @ sparse["weight"].T + sparse["bias"])[:, 0].tolist()
        rows = (states @ colbert["weight"].float().T + colbert["bias"].float())[1:]
    unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    words: dict[int, float] = {}
    for token, weight in zip(ids[0].tolist(), weights, strict=True):
        if token not in unused and weight > words.get(token, 0):
            words[token] = weight
    normalize = torch.nn.functional.normalize
    return {"dense": normalize(states[0], dim=-1), "sparse": words, "multivector": normalize(rows, dim=-1)}


def as_maps(found: Mapping[str, Any]) -> dict[str, Any]:
    indices = np.array(sorted(found["sparse"]))
    values = np.array([found["sparse"][index] for index in indices])
    rows = found["multivector"].numpy()
    float32 = {"dtype": "float32"}
    return {
        "dense": {"dims": tiny.WIDTH, **float32, "values": found["dense"].numpy()},
        "sparse": {"dims": tiny.VOCABULARY, **float32, "indices": indices, "values": values},
        "multivector": {"token_dims": 24, "num_tokens": len(rows), **float32, "values": rows},
    }


def by_three(query: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, float]:
    shared = query["sparse"].keys() & text["sparse"].keys()
    similar = query["multivector"] @ text["multivector"].T
    return {
        "dense": float(query["dense"] @ text["dense"]),
        "sparse": sum(query["sparse"][word] * text["sparse"][word] for word in shared),
        "multivector": float(similar.max(1).values.sum() / len(query["multivector"])),
    }


class TestThreeOutputs(Contract):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        published(folder)
        return spec()

    @classmethod
    def locate(cls, spec: ModelSpec, folder: Path) -> Path | None:
        return pickled.converted(spec, folder, folder / "cache")

    @classmethod
    def payload(cls) -> Payload:
        return Payload([{"text": text} for text in TEXTS], {"output_types": ["dense", "sparse", "multivector"]})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        return [as_maps(theirs(folder, item["text"])) for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [10_000]}


class TestScores(TestThreeOutputs):
    @classmethod
    def payload(cls) -> Payload:
        return Payload([{"text": text} for text in TEXTS], {}, {"text": TEXTS[2]})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        query = theirs(folder, TEXTS[2])
        scores = [by_three(query, theirs(folder, item["text"])) for item in payload.items]
        return [{"score": sum(WEIGHTS[name] * one[name] for name in WEIGHTS)} for one in scores]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m3")
    published(folder)
    return pickled.converted(spec(), folder, folder / "cache")


@pytest.fixture(scope="module")
def m3(folder: Path) -> Alone:
    return Alone(spec(), folder)


@pytest.mark.parametrize("output", ["dense", "sparse", "multivector"])
def test_an_output_alone_is_what_it_is_beside_others(m3: Alone, output: str) -> None:
    items = [{"text": text} for text in TEXTS]
    alone = m3.run(Payload(items, {"output_types": [output]}))
    beside = m3.run(Payload(items, {"output_types": ["dense", "sparse", "multivector"]}))
    for one, other in zip(alone, beside, strict=True):
        assert one.keys() & {"dense", "sparse", "multivector"} == {output}
        assert np.allclose(one[output]["values"], other[output]["values"], atol=1e-5)


def test_only_what_is_asked_for_leaves_the_engine(m3: Alone) -> None:
    payload = Payload([{"text": text} for text in TEXTS], {"output_types": ["sparse"]})
    parts = [found[0] for found in m3.preparer.prepare(payload) if isinstance(found, list)]
    assert {name for output in m3.forward(parts) for name in output} == {"sparse", "precision"}


def test_an_entry_says_what_counts_in_a_score(folder: Path) -> None:
    model = Alone(spec(score_weights={"sparse": 1}), folder)
    query = theirs(folder, TEXTS[1])
    found = model.run(Payload([{"text": TEXTS[2]}], {}, {"text": TEXTS[1]}))
    assert found[0]["score"] == pytest.approx(by_three(query, theirs(folder, TEXTS[2]))["sparse"], abs=1e-5)
    between = model.run(Payload([{"text": TEXTS[2]}], {"normalize": True}, {"text": TEXTS[1]}))
    assert 0.5 <= between[0]["score"] < 1


@pytest.mark.parametrize("weights", [{}, {"dense": -1}, {"lexical": 1}, {"dense": 0}, 3])
def test_weights_that_mean_nothing_are_refused(folder: Path, weights: Any) -> None:
    with pytest.raises(ModelLoadFailed, match="score_weights"):
        Alone(spec(score_weights=weights), folder)


def test_vectors_by_token_can_be_folded(m3: Alone) -> None:
    options = {"output_types": ["dense"], "muvera": {"dims": 256}}
    [result] = m3.run(Payload([{"text": TEXTS[3]}], options))
    assert result["dense"]["dims"] == 256


def test_vectors_are_of_unit_length(m3: Alone) -> None:
    with pytest.raises(InvalidInput) as caught:
        m3.run(Payload([{"text": "a"}], {"normalize": False}))
    assert caught.value.param == "options.normalize"


def test_an_option_of_models_without_sparse_vectors_is_refused(m3: Alone) -> None:
    with pytest.raises(InvalidInput) as caught:
        m3.run(Payload([{"text": "a"}], {"output_types": ["sparse"], "smve": {}}))
    assert caught.value.param == "options.smve"


def test_a_query_that_is_too_long_is_told_as_that(m3: Alone) -> None:
    with pytest.raises(InputTooLong) as caught:
        m3.run(Payload([{"text": "a"}], {"overflow": "error"}, {"text": "a " * 500}))
    assert caught.value.param == "query.text" and caught.value.extra["tokens"] == 502


def test_a_folder_without_its_heads_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    with pytest.raises(ModelLoadFailed, match=r"sparse_linear\.safetensors"):
        Alone(spec(), tmp_path)
