"""Sparse encoders against sentence-transformers' own SparseEncoder, and queries that need no forward."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import InvalidInput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract
from workers.families.alone import Alone
from workers.layers import masked_head

WORDS = tiny.words()


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec("org/sparse", "sparse_encoder", ("encode",), outputs=("sparse",), **fields)


def masked(kind: str, folder: Path, pooling: Mapping[str, str]) -> Path:
    """A masked-language model with a SPLADE module behind it."""
    torch.manual_seed(0)
    whole = tiny.library.AutoModelForMaskedLM.from_config(tiny.config(kind))
    with torch.no_grad():  # as trained ones are, most words do not fit
        whole.get_output_embeddings().bias.fill_(-0.05)
    tiny.tokenizer(kind, folder)
    whole.save_pretrained(folder)
    tiny.write(folder / "1_SpladePooling/config.json", pooling)
    names = [("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling")]
    kinds = "sentence_transformers.sparse_encoder.models"
    modules = [{"idx": i, "name": str(i), "path": p, "type": f"{kinds}.{name}"} for i, (p, name) in enumerate(names)]
    tiny.write(folder / "modules.json", modules)
    tiny.write(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    return folder


def dense(sparse: Mapping[str, Any]) -> np.ndarray:
    row = np.zeros(sparse["dims"], np.float32)
    row[sparse["indices"]] = sparse["values"]
    return row


class TestSplade(Contract):
    kind = "bert"
    pooling: Mapping[str, str] = {"pooling_strategy": "max", "activation_function": "relu"}

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        masked(cls.kind, folder, cls.pooling)
        return spec(max_tokens=64)

    @classmethod
    def payload(cls) -> Payload:
        items = [{"text": " ".join(WORDS[start : start + count])} for start, count in enumerate((1, 3, 8, 20, 40))]
        return Payload(items, {"output_types": ["sparse"]})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        from sentence_transformers import SparseEncoder

        model = SparseEncoder(str(folder), device="cpu")
        rows = [model.encode(item["text"], convert_to_sparse_tensor=False).numpy() for item in payload.items]
        return [{"sparse": _as_map(row)} for row in rows]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [10_000]}


def _as_map(row: np.ndarray) -> dict[str, Any]:
    indices = np.flatnonzero(row)
    return {"dims": len(row), "dtype": "float32", "indices": indices, "values": row[indices]}


class TestSpladeOfModernBert(TestSplade):
    kind = "modernbert"
    pooling: Mapping[str, str] = {"pooling_strategy": "sum", "activation_function": "log1p_relu"}


class TestSpladeOfDistilBert(TestSplade):
    kind = "distilbert"


def test_only_the_words_that_fit_are_sent(tmp_path: Path) -> None:
    model = Alone(spec(), masked("bert", tmp_path, TestSplade.pooling))

    [result] = model.run(Payload([{"text": WORDS[0]}], {"output_types": ["sparse"]}))

    sparse = result["sparse"]
    assert 0 < len(sparse["indices"]) < sparse["dims"]
    assert (sparse["values"] > 0).all()
    assert (np.diff(sparse["indices"]) > 0).all()


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_a_text_longer_than_a_chunk_is_pooled_whole(
    tmp_path: Path, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Alone(spec(), masked("bert", tmp_path, {"pooling_strategy": pooling}))
    payload = Payload([{"text": " ".join(WORDS[:40])}, {"text": WORDS[3]}], {"output_types": ["sparse"]})
    whole = [dense(result["sparse"]) for result in model.run(payload)]

    monkeypatch.setattr(masked_head, "CHUNK_TOKENS", 7)

    assert np.allclose([dense(result["sparse"]) for result in model.run(payload)], whole, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "param"),
    [({"output_types": ["dense"]}, "options.output_types"), ({"normalize": True}, "options.normalize")],
)
def test_what_a_sparse_model_cannot_do_is_refused(tmp_path: Path, options: dict[str, Any], param: str) -> None:
    model = Alone(spec(), masked("bert", tmp_path, TestSplade.pooling))

    with pytest.raises(InvalidInput) as caught:
        model.run(Payload([{"text": "a"}], {"output_types": ["sparse"], **options}))
    assert caught.value.param == param


def routed(folder: Path) -> Path:
    """Documents by SPLADE, queries by one weight per word, as OpenSearch's models are."""
    from safetensors.numpy import save_file

    masked("bert", folder / "document_0_MLMTransformer", TestSplade.pooling)
    tiny.write(folder / "document_1_SpladePooling/config.json", TestSplade.pooling)
    tiny.tokenizer("bert", folder / "query_0_SparseStaticEmbedding")
    weights = np.linspace(0.5, 2.0, tiny.VOCABULARY).astype(np.float32)
    save_file({"weight": weights}, folder / "query_0_SparseStaticEmbedding/model.safetensors")
    kinds = "sentence_transformers.sparse_encoder.models"
    router = {
        "types": {
            "query_0_SparseStaticEmbedding": f"{kinds}.SparseStaticEmbedding.SparseStaticEmbedding",
            "document_0_MLMTransformer": f"{kinds}.MLMTransformer.MLMTransformer",
            "document_1_SpladePooling": f"{kinds}.SpladePooling.SpladePooling",
        },
        "structure": {
            "query": ["query_0_SparseStaticEmbedding"],
            "document": ["document_0_MLMTransformer", "document_1_SpladePooling"],
        },
        "parameters": {"default_route": "document"},
    }
    tiny.write(folder / "router_config.json", router)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}
    (folder / "modules.json").write_text(json.dumps([module]))
    tiny.write(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    return folder


def test_queries_without_a_forward_weigh_their_words(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    folder = routed(tmp_path)
    model, theirs = Alone(spec(), folder), SparseEncoder(str(folder), device="cpu")
    text = f"{WORDS[5]} {WORDS[9]} {WORDS[5]}"

    [query] = model.run(Payload([{"text": text}], {"output_types": ["sparse"], "is_query": True}))
    [document] = model.run(Payload([{"text": text}], {"output_types": ["sparse"], "is_query": False}))

    wanted = theirs.encode_query(text, convert_to_sparse_tensor=False).numpy()
    assert np.allclose(dense(query["sparse"]), wanted)
    wanted = theirs.encode_document(text, convert_to_sparse_tensor=False).numpy()
    assert np.allclose(dense(document["sparse"]), wanted, atol=1e-4)
