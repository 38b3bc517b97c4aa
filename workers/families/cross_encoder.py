"""Cross-encoders: one number for a query and a text read together, from sequence classifiers with one label.

The query is tokenized once for all its texts. Scores are on the scale the checkpoint names, as sentence-transformers
reads it: mostly a sigmoid, 0 to 1; the option `normalize` asks for that, or for the bare logit.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.errors import InputTooLong, InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import ScoreOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import labelled, parking, transformer
from workers.layers.pairs import PairTokenizer
from workers.weights.failures import UNSUPPORTED, load_failed


class PairPreparer:
    """A query and texts in, one score each out. No option changes how a forward runs."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = labelled.read(spec, folder)
        if len(about.labels) != 1:
            raise load_failed(spec.model, UNSUPPORTED, f"it has {len(about.labels)} labels; a cross_encoder has one")
        self._tokenizer = PairTokenizer(spec.model, about.checkpoint)
        self._normalize = labelled.has_sigmoid(spec.model, folder, about.config)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ScoreOptions.from_wire(payload.options)
        if wanted.instruction is not None:
            raise InvalidInput(f"model {self._model!r} takes no instruction", param="options.instruction")
        query = (payload.query or {}).get("text")
        if not isinstance(query, str):
            raise InvalidInput(f"model {self._model!r} reads text", param="query.text")
        texts = [item["text"] for item in payload.items if isinstance(item.get("text"), str)]
        first, *read = self._tokenizer.read([query, *texts])
        rest = iter(read)
        return [
            self._prepare(first, next(rest), wanted.overflow)
            if isinstance(item.get("text"), str)
            else InvalidInput(f"model {self._model!r} reads text", param="text")
            for item in payload.items
        ]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted = ScoreOptions.from_wire(options)
        normalize = self._normalize if wanted.normalize is None else wanted.normalize
        how = labelled.SIGMOID if normalize else labelled.BARE
        return {"score": float(labelled.scores(self._model, outputs[0]["logits"], how)[0])}

    def _prepare(self, query: list[int], text: list[int], overflow: str) -> Parts | ShoalError:
        tokens = self._tokenizer.wrap(query, text)
        if tokens.is_truncated and overflow == "error":
            limit = self._tokenizer.limit
            return InputTooLong(
                f"query and text have {tokens.whole} tokens; model {self._model!r} reads at most {limit}",
                extra={"tokens": tokens.whole, "limit": limit},
            )
        count = len(tokens.ids)
        return [Prepared(tokens.inputs, cost=count, tokens=count, truncated=tokens.is_truncated)]


class CrossEncoder:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, classifier: Any, max_tokens: int, has_sigmoid: bool) -> None:
        self.packed: bool = classifier.way.packed
        self.bytes: int = classifier.way.bytes
        self.host_copy = parking.TorchCopy.of(*classifier.way.modules)
        self._classifier = classifier
        self._max_tokens = max_tokens
        self._scores = "0 to 1" if has_sigmoid else "logits"

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        return [{"logits": row} for row in self._classifier.logits(batch)]

    def facts(self) -> Mapping[str, Any]:
        return {**self._classifier.facts(), "max_tokens": self._max_tokens, "scores": self._scores}


def warm() -> None:
    import workers.layers.classifying  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> PairPreparer:
    return PairPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, labelled.read(spec, folder).checkpoint.folder, device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> CrossEncoder:
    from workers.layers import classifying

    source = transformer.needed(spec, folder)
    about = labelled.read(spec, source).checkpoint
    has_sigmoid = labelled.has_sigmoid(spec.model, source, about.config)
    with_types = PairTokenizer(spec.model, about).has_types
    return CrossEncoder(classifying.load(spec, about, device, with_types, report), about.max_tokens, has_sigmoid)
