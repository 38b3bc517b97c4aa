"""Late interaction against sentence-transformers' own MultiVectorEncoder: its files, PyLate's and Stanford's."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import InvalidInput, ModelLoadFailed
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract
from workers.families.alone import Alone
from workers.layers import anchors, muvera

WORDS = tiny.words()
TEXTS = [
    " ".join(WORDS[start : start + count]) + (" ." if count % 2 else "")
    for start, count in enumerate((1, 3, 8, 20, 40))
]
ATTENDED = {"strategy": "fixed", "attend": True, "length": 32}
UNATTENDED = {"strategy": "fixed", "attend": False, "length": 32}
AT_LEAST = {"strategy": "min", "attend": False, "length": 12}


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec("org/colbert", "multi_vector", ("encode", "score"), outputs=("multivector",), **fields)


def tokenizer(kind: str, folder: Path) -> None:
    """The tiny one, with a mask and with what ColBERT's markers and skipped words need in the vocabulary."""
    tiny.tokenizer(kind, folder)
    file = folder / "tokenizer.json"
    known = json.loads(file.read_text())
    vocabulary = known["model"]["vocab"]
    for word, spelling in zip(list(vocabulary)[-6:], (".", ",", "[MASK]", "[unused0]", "[unused1]", "!"), strict=True):
        vocabulary[spelling] = vocabulary.pop(word)
    known["added_tokens"].append(
        {"id": vocabulary["[MASK]"], "content": "[MASK]", "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    )
    file.write_text(json.dumps(known))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    tiny.write(folder / "tokenizer_config.json", {**settings, "mask_token": "[MASK]"})


def encoder(kind: str, folder: Path) -> None:
    torch.manual_seed(0)
    tiny.library.AutoModel.from_config(tiny.config(kind)).save_pretrained(folder)
    tokenizer(kind, folder)


def native(kind: str, folder: Path, expansion: Mapping[str, Any] | None, **mask: Any) -> None:
    """As sentence-transformers saves it."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize

    encoder(kind, folder / "base")
    body = Transformer(str(folder / "base"), query_expansion=expansion, document_length=48)
    torch.manual_seed(1)
    both: Any = {"module_input_name": "token_embeddings", "activation_function": torch.nn.Identity()}
    wide = Dense(tiny.WIDTH, 24, bias=True, use_residual=True, **both)
    narrow = Dense(24, 16, bias=False, **both)
    modules = [body, wide, narrow, MultiVectorMask(**mask), Normalize(module_input_name="token_embeddings")]
    prompts = {"query": "[unused0] ", "document": "[unused1] "}  # three tokens each, as words of this tokenizer
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save(str(folder))
    shutil.rmtree(folder / "base")


def pylate(kind: str, folder: Path, **published: Any) -> None:
    """As PyLate saved it up to 3: two modules, and the rest in one file."""
    encoder(kind, folder)
    torch.manual_seed(1)
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": torch.randn(16, tiny.WIDTH)}, folder / "1_Dense/model.safetensors")
    shape = {"in_features": tiny.WIDTH, "out_features": 16, "bias": False}
    tiny.write(folder / "1_Dense/config.json", shape | {"activation_function": "torch.nn.modules.linear.Identity"})
    names = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(names)]
    tiny.write(folder / "modules.json", modules)
    tiny.write(folder / "sentence_bert_config.json", {"max_seq_length": 47, "do_lower_case": False})
    marked = {"model_type": "ColBERT", "query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    tiny.write(folder / "config_sentence_transformers.json", {**marked, **published})


def stanford(folder: Path) -> None:
    """As Stanford's ColBERT is kept: BERT, with the projection among its weights."""
    encoder("bert", folder)
    weights = {f"bert.{name}": values for name, values in load_file(folder / "model.safetensors").items()}
    torch.manual_seed(1)
    save_file({**weights, "linear.weight": torch.randn(16, tiny.WIDTH)}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    tiny.write(folder / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    tiny.write(folder / "artifact.metadata", {"query_maxlen": 32, "doc_maxlen": 60, "attend_to_mask_tokens": False})


def theirs(folder: Path) -> Any:
    from sentence_transformers import MultiVectorEncoder

    return MultiVectorEncoder(str(folder), device="cpu")


def as_map(rows: np.ndarray) -> dict[str, Any]:
    return {"token_dims": rows.shape[1], "num_tokens": len(rows), "dtype": "float32", "values": rows}


class Documents(Contract):
    is_query = False

    @classmethod
    def payload(cls) -> Payload:
        options = {"output_types": ["multivector"], "is_query": cls.is_query}
        return Payload([{"text": text} for text in TEXTS], options)

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        model = theirs(folder)
        read = model.encode_query if cls.is_query else model.encode_document
        return [{"multivector": as_map(read([item["text"]], convert_to_numpy=True)[0])} for item in payload.items]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [10_000]}


class Scores(Documents):
    """The same models, as rerankers."""

    @classmethod
    def payload(cls) -> Payload:
        return Payload([{"text": text} for text in TEXTS], {}, {"text": " ".join(WORDS[5:9])})

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        model = theirs(folder)
        assert payload.query is not None
        query = model.encode_query([payload.query["text"]])
        documents = [model.encode_document([item["text"]])[0] for item in payload.items]
        return [{"score": float(model.similarity(query, [one])[0, 0])} for one in documents]


class TestDocuments(Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        native("bert", folder, UNATTENDED, skiplist_words=[".", ","])
        return spec()


class Queries:
    """Filled-up queries are all of one size, and so of one cost."""

    is_query = True

    def test_larger_items_cost_more(self, loaded: Alone) -> None:
        payload = self.payload()  # type: ignore[attr-defined]
        costs = [found[0].cost for found in loaded.preparer.prepare(payload) if isinstance(found, list)]
        assert costs == sorted(costs)


class TestQueries(Queries, TestDocuments):
    pass


class TestQueriesThatLookAtWhatFillsThem(Queries, Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        native("modernbert", folder, ATTENDED, skiplist_words=["."], skiplist_tasks=["query", "document"])
        return spec()


class TestQueriesOfAtLeastALength(Queries, Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        native("xlm-roberta", folder, AT_LEAST)
        return spec()


class TestQueriesOfAPaddedModel(Queries, Documents):
    """MPNet drops its position bias where attention is replaced, so it runs padded."""

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        native("mpnet", folder, UNATTENDED)
        return spec()


class TestScores(Scores):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        native("bert", folder, UNATTENDED, skiplist_words=[".", ","])
        return spec()


class TestPyLate(Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        pylate("modernbert", folder, document_length=40, query_length=32)
        return spec()


class TestPyLateQueries(Queries, Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        pylate("bert", folder, query_length=16, attend_to_expansion_tokens=True, skiplist_words=[])
        return spec()


class TestPyLateWithoutExpansion(Queries, Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        pylate("bert", folder, query_length=24, do_query_expansion=False)
        return spec()


class TestStanford(Documents):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        stanford(folder)
        return spec()


class TestStanfordScores(Scores):
    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        stanford(folder)
        return spec()


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tmp_path_factory.mktemp("colbert")
    native("bert", folder, UNATTENDED, skiplist_words=["."])
    return Alone(spec(), folder)


def rows(model: Alone, *texts: str, **options: Any) -> list[dict[str, Any]]:
    return model.run(Payload([{"text": text} for text in texts], {"output_types": ["multivector"], **options}))


def test_a_documents_height_is_its_own(colbert: Alone) -> None:
    """S013: the same together and apart, in order, with no row of zeros."""
    short, long = " ".join(WORDS[:3]), " ".join(WORDS[:40])
    query = rows(colbert, " ".join(WORDS[2:5]), is_query=True)[0]["multivector"]["values"]

    together = [result["multivector"] for result in rows(colbert, long, short)]
    apart = [rows(colbert, text)[0]["multivector"] for text in (long, short)]

    assert (
        [one["num_tokens"] for one in together] == [one["num_tokens"] for one in apart] == [45, 8]
    )  # with begin, marker, end
    for one, other in zip(together, apart, strict=True):
        assert np.allclose(one["values"], other["values"], atol=1e-5)
        assert np.linalg.norm(one["values"], axis=1) == pytest.approx(1.0, abs=1e-5)
        sums = [(query @ values.T).max(1).sum() for values in (one["values"], other["values"])]
        assert sums[0] == pytest.approx(sums[1], abs=1e-4)


def test_a_query_is_read_once_for_all_its_texts(colbert: Alone) -> None:
    payload = Payload([{"text": text} for text in TEXTS], {}, {"text": WORDS[7]})
    prepared = [parts[0] for parts in colbert.preparer.prepare(payload) if isinstance(parts, list)]
    forward = colbert.model._settled.forward  # type: ignore[attr-defined]
    with patch.object(forward, "run", wraps=forward.run) as run:
        colbert.model.forward([part.inputs for part in prepared], None)
    [call] = run.call_args_list
    assert len(call.args[0]) == len(TEXTS) + 1
    alone = colbert.preparer.prepare(Payload(payload.items, {"output_types": ["multivector"]}))
    documents = sum(parts[0].tokens for parts in alone if isinstance(parts, list))
    assert sum(part.tokens for part in prepared) == documents + 6  # begin, marker, word, end; once


@pytest.mark.parametrize("normalize", [True, None])
def test_a_score_can_be_had_from_zero_to_one(colbert: Alone, normalize: bool | None) -> None:
    payload = Payload([{"text": text} for text in TEXTS], {"normalize": normalize}, {"text": TEXTS[2]})
    scores = [result["score"] for result in colbert.run(payload)]
    plain = [result["score"] for result in colbert.run(Payload(payload.items, {}, payload.query))]
    assert np.argsort(scores).tolist() == np.argsort(plain).tolist()
    assert all(0 <= score <= 1 for score in scores) is bool(normalize)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8"])
def test_rows_that_are_quantised_can_be_had_back(colbert: Alone, dtype: str) -> None:
    whole = rows(colbert, TEXTS[2])[0]["multivector"]["values"]
    small = rows(colbert, TEXTS[2], output_dtype=dtype)[0]["multivector"]
    assert small["dtype"] == dtype and small["values"].dtype == dtype
    scale, offset = (small.get(name, default) for name, default in (("scale", np.ones(1)), ("offset", np.zeros(1))))
    back = small["values"].astype(np.float32) * scale[:, None] + offset[:, None]
    assert np.abs(back - whole).max() < 0.01


def test_bits_are_packed_by_row(colbert: Alone) -> None:
    whole = rows(colbert, TEXTS[2])[0]["multivector"]["values"]
    bits = rows(colbert, TEXTS[2], output_dtype="binary")[0]["multivector"]
    assert bits["token_dims"] == 16 and bits["values"].shape == (len(whole), 2)
    assert (np.unpackbits(bits["values"], axis=1) == (whole > 0)).all()


def test_a_text_of_nothing_but_skipped_words_keeps_its_marks(colbert: Alone) -> None:
    [result] = rows(colbert, ". . .")
    assert result["multivector"]["num_tokens"] == 5  # begin, marker, end


def test_what_is_cut_off_is_told(colbert: Alone) -> None:
    document, query = rows(colbert, "a " * 60)[0], rows(colbert, "a " * 60, is_query=True)[0]
    assert document["truncated"] and document["multivector"]["num_tokens"] == 48
    assert query["truncated"] and query["multivector"]["num_tokens"] == 32
    [refused] = rows(colbert, "a " * 60, overflow="error")
    assert refused["error"]["code"] == "INPUT_TOO_LONG"


def test_more_of_a_document_is_read_where_the_entry_says_so(tmp_path: Path) -> None:
    pylate("bert", tmp_path, document_length=20)
    model = Alone(spec(load={"document_length": 40}), tmp_path)
    [result] = rows(model, " ".join(WORDS[:60]))
    assert result["multivector"]["num_tokens"] == 40


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"output_types": ["sparse"]}, "options.output_types"),
        ({"output_types": ["dense"]}, "options.output_types"),
        ({"output_types": ["multivector"], "normalize": False}, "options.normalize"),
    ],
)
def test_what_it_cannot_give_is_refused(colbert: Alone, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        colbert.run(Payload([{"text": "a"}], options))
    assert caught.value.param == param


def test_a_model_that_only_pools_is_refused(tmp_path: Path) -> None:
    encoder("bert", tmp_path)
    with pytest.raises(ModelLoadFailed, match="no late-interaction model"):
        Alone(spec(), tmp_path)


def test_encodings_order_documents_as_maxsim_does() -> None:
    """Of 60 documents the best by MaxSim is among the first three by inner product, for nearly all queries."""
    chance = np.random.default_rng(7)
    documents = [unit(chance.normal(size=(20, 32))) for _ in range(60)]
    encodings, shape = muvera.Encodings(), muvera.Shape()
    folded = np.stack([encodings.encode(rows, shape, is_query=False) for rows in documents])
    found = 0
    for target in range(40):
        query = unit(documents[target][chance.choice(20, 6, replace=False)] + 0.1 * chance.normal(size=(6, 32)))
        best = np.argsort(folded @ encodings.encode(query, shape, is_query=True))[::-1]
        exact = int(np.argmax([(query @ rows.T).max(1).sum() for rows in documents]))
        found += exact in best[:3]
    assert found >= 38


def unit(rows: np.ndarray) -> np.ndarray:
    made: np.ndarray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return made


def test_encodings_are_the_papers_without_a_sketch() -> None:
    """Every part by its definition: sums of a query's vectors, means of a document's, its nearest where it has none."""
    rows = unit(np.random.default_rng(0).normal(size=(3, 4)))
    shape = muvera.Shape(repetitions=2, planes=2, dims=1 << 16)
    query, document = (muvera.Encodings().encode(rows, shape, is_query=kind).reshape(2, 4, 4) for kind in (True, False))
    for at in range(2):
        planes = np.random.default_rng(muvera.SEED + at).normal(size=(4, 2)).astype(np.float32)
        sides = (rows @ planes > 0).astype(int)
        for part in range(4):
            wanted = np.array([part & 1, part >> 1])
            inside = rows[(sides == wanted).all(1)]
            nearest = rows[np.abs(sides - wanted).sum(1).argmin()]
            assert np.allclose(query[at, part], inside.sum(0), atol=1e-6)
            assert np.allclose(document[at, part], inside.mean(0) if len(inside) else nearest, atol=1e-6)


def test_many_vectors_are_made_one(colbert: Alone) -> None:
    asked = {"output_types": ["dense", "multivector"], "muvera": {"dims": 512}}
    both = rows(colbert, *TEXTS, **asked)
    assert [result["dense"]["dims"] for result in both] == [512] * len(TEXTS)
    again = rows(colbert, TEXTS[3], **asked)[0]["dense"]["values"]
    assert np.allclose(both[3]["dense"]["values"], again, atol=1e-4)
    [one] = rows(colbert, "a", output_types=["dense"], muvera={})
    assert one["dense"]["dims"] == 10_240 and "multivector" not in one


def test_anchors_order_documents_as_maxsim_does() -> None:
    """Of 60 documents the best by MaxSim is among the first three by inner product, for nearly all queries."""
    chance = np.random.default_rng(7)
    drawn = torch.from_numpy(anchors.directions(8192, 32))

    def sparse(rows: np.ndarray, is_query: bool) -> np.ndarray:
        vector = np.zeros(8192, np.float32)
        places, values = anchors.joined(*anchors.nearest(torch.from_numpy(rows), drawn, 32), is_query)
        vector[places] = values
        return vector

    documents = [unit(chance.normal(size=(20, 32))) for _ in range(60)]
    made = np.stack([sparse(rows, False) for rows in documents])
    found = 0
    for target in range(40):
        query = unit(documents[target][chance.choice(20, 6, replace=False)] + 0.1 * chance.normal(size=(6, 32)))
        best = np.argsort(made @ sparse(query, True))[::-1]
        exact = int(np.argmax([(query @ rows.T).max(1).sum() for rows in documents]))
        found += exact in best[:3]
    assert found >= 38


@pytest.mark.parametrize("is_query", [True, False])
def test_many_vectors_are_made_one_sparse_one(colbert: Alone, is_query: bool) -> None:
    """By its definition: the nearest directions of each row, summed for queries, the largest for documents."""
    asked = {"output_types": ["sparse"], "smve": {"width": 512, "k": 3}, "is_query": is_query}
    found = rows(colbert, *TEXTS, **asked)
    plain = rows(colbert, *TEXTS, output_types=["multivector"], is_query=is_query)
    for one, other in zip(found, plain, strict=True):
        assert "multivector" not in one and one["sparse"]["dims"] == 512
        near = other["multivector"]["values"] @ anchors.directions(512, 16).T
        wanted = np.zeros(512, np.float32)
        for row in near:
            for place in np.argsort(row)[-3:]:
                wanted[place] = wanted[place] + row[place] if is_query else max(wanted[place], row[place])
        assert one["sparse"]["indices"].tolist() == np.flatnonzero(wanted > 0).tolist()
        assert np.allclose(one["sparse"]["values"], wanted[wanted > 0], atol=1e-4)


def test_directions_are_compared_a_few_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, tokens = torch.from_numpy(anchors.directions(512, 16)), torch.randn(40, 16)
    whole = anchors.nearest(tokens, drawn, 3)
    monkeypatch.setattr(anchors, "_AT_ONCE", 512 * 7)
    assert all(map(np.allclose, whole, anchors.nearest(tokens, drawn, 3)))
    assert [found.shape for found in anchors.nearest(tokens[:0], drawn, 3)] == [(0, 3), (0, 3)]


def test_a_forward_has_directions_of_one_width(colbert: Alone) -> None:
    """Drawing many takes longer than the forward, and its neighbours would wait."""
    widths = [256, 512]
    found = [
        colbert.preparer.prepare(Payload([{"text": "a"}], {"output_types": ["sparse"], "smve": {"width": width}}))
        for width in widths
    ]
    assert [call[0][0].key for call in found] == widths  # type: ignore[index]  # none is an error


def test_all_three_forms_can_be_had_together(colbert: Alone) -> None:
    outputs = ["multivector", "dense", "sparse"]
    [one] = rows(colbert, TEXTS[2], output_types=outputs, muvera={"dims": 64}, smve={"width": 256})
    assert one.keys() >= set(outputs)
