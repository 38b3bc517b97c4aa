"""Late interaction: one vector for each token of a text, and MaxSim between a query's and a document's.

ColBERT (Khattab and Zaharia, 2020, https://arxiv.org/abs/2004.12832): a score is the sum over the query's tokens of
each one's best similarity to any token of the document. Queries may be filled up with tokens that look at the query
and that it does not look at. Rows are what a text has by itself: nothing is padded with vectors of nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions, ScoreOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import anchors, interaction, multivector, muvera, parking, transformer, vectors
from workers.layers.checkpoint import Checkpoint, read_json
from workers.layers.multivector import MultiVectorCheckpoint
from workers.layers.texts import TextReader, by_chunk
from workers.layers.tokenizing import TextTokenizer
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed


@dataclass(frozen=True, slots=True)
class _Side:
    """How queries are read, or documents."""

    reader: TextReader
    is_query: bool
    skipped: np.ndarray  # ids that get no vector
    kept_only: np.ndarray  # if any, the only ids that get one
    filler: int | None = None  # what short queries are filled up with


class MultiVectorPreparer:
    """Queries, documents and pairs of them share forwards. `key` is the number of directions where those are asked for:
    drawing them takes as long as a forward, and each forward draws at most once.
    """

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._about = multivector.read(spec, folder)
        self._query = self._side(self._about.query, is_query=True)
        self._document = self._side(self._about.document, is_query=False)
        self._muvera = muvera.Encodings()

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        if payload.query is not None:
            return self._prepare_pairs(payload)
        wanted = EncodeOptions.from_wire(payload.options)
        self._check(wanted)
        read = self._read(self._query if wanted.is_query else self._document, payload.items, payload.options)
        if "sparse" not in wanted.output_types:
            return read
        shape = anchors.Shape.from_wire(wanted.smve or {})
        asked = {"anchors": (shape.width, shape.k), "rows": wanted.output_types != ("sparse",)}
        return [
            found
            if isinstance(found, ShoalError)
            else [replace(part, inputs={**part.inputs, **asked}, key=shape.width) for part in found]
            for found in read
        ]

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        if "score" in outputs[0]:
            return {"score": self._score(outputs[0], ScoreOptions.from_wire(options))}
        wanted = EncodeOptions.from_wire(options)
        return by_chunk(outputs, parts, lambda output, _: self._encoded(output, wanted))

    def _encoded(self, output: Mapping[str, Any], wanted: EncodeOptions) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if "multivector" in wanted.output_types:
            made["multivector"] = vectors.finish_many(
                self._model, output["rows"], precision=output["precision"], dtype=wanted.output_dtype
            )
        if "dense" in wanted.output_types:
            made["dense"] = self._as_one(output, wanted)
        if "sparse" in wanted.output_types:
            words, values = anchors.joined(output["places"], output["near"], bool(wanted.is_query))
            width = anchors.Shape.from_wire(wanted.smve or {}).width
            found = {"dims": width, "indices": words, "values": values}
            made["sparse"] = vectors.finish_sparse(self._model, found, wanted.output_dtype)
        return made

    def _as_one(self, output: Mapping[str, Any], wanted: EncodeOptions) -> dict[str, Any]:
        shape = muvera.Shape.from_wire(wanted.muvera or {})
        return vectors.finish(
            self._model,
            self._muvera.encode(output["rows"], shape, is_query=bool(wanted.is_query)),
            precision=output["precision"],
            dimensions=None,
            normalize=bool(wanted.normalize),
            dtype=wanted.output_dtype,
        )

    def _score(self, output: Mapping[str, Any], wanted: ScoreOptions) -> float:
        """The sum of the query's best similarities, or the mean of them from 0 to 1."""
        total, count = float(output["score"]), int(output["count"])
        if not np.isfinite(total):
            raise NonFiniteOutput(f"model {self._model!r} gave a score that is not finite")
        if wanted.normalize:
            return (1 + total / count) / 2
        return total / count if self._about.is_mean else total

    def _check(self, wanted: EncodeOptions) -> None:
        for output, option, shape in (("dense", "muvera", wanted.muvera), ("sparse", "smve", wanted.smve)):
            if output in wanted.output_types and shape is None:
                wrong = f"model {self._model!r} gives one {output} vector of a text only with the option {option!r}"
                raise InvalidInput(wrong, param="options.output_types")
        if wanted.normalize is False and self._about.normalize:
            wrong = f"model {self._model!r} compares vectors of unit length; they cannot be had otherwise"
            raise InvalidInput(wrong, param="options.normalize")

    def _read(self, side: _Side, items: list[dict[str, Any]], options: Mapping[str, Any]) -> list[Parts | ShoalError]:
        read = side.reader.read(Payload(items, {**options, "is_query": side.is_query}))
        return [
            found if isinstance(found, ShoalError) else [self._filled(part, side) for part in found] for found in read
        ]

    def _filled(self, part: Prepared, side: _Side) -> Prepared:
        ids, seen = part.inputs["ids"], len(part.inputs["ids"])
        expansion = self._about.expansion
        if side.filler is not None and expansion is not None and seen < expansion.length:
            ids = np.pad(ids, (0, expansion.length - seen), constant_values=side.filler)
            seen = len(ids) if expansion.is_seen else seen
        inputs = {"ids": ids, "seen": seen, "kept": _kept(ids, side)}
        return replace(part, inputs=inputs, cost=len(ids))

    def _prepare_pairs(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ScoreOptions.from_wire(payload.options)
        if wanted.instruction is not None:
            raise InvalidInput(f"model {self._model!r} takes no instruction", param="options.instruction")
        options = {"overflow": wanted.overflow}
        [query] = self._read(self._query, [payload.query or {}], options)
        documents = self._read(self._document, payload.items, options)
        return interaction.with_query(interaction.the_query(query), documents)

    def _side(self, about: Checkpoint, is_query: bool) -> _Side:
        reader = TextReader(self._model, about)
        reader.tokenizer.take_whole(self._about.markers)
        words = self._about.skipped if ("query" if is_query else "document") in self._about.skips_in else ()
        return _Side(
            reader,
            is_query,
            _known(reader.tokenizer, words),
            np.array([] if is_query else self._about.kept_only, np.int32),
            self._filler(reader.tokenizer) if is_query and self._about.expansion else None,
        )

    def _filler(self, tokenizer: TextTokenizer) -> int:
        settings = read_json(self._model, self._about.text.folder / "tokenizer_config.json", {})
        named = [self._about.expansion and self._about.expansion.token]
        if named[0] is None:
            named = [settings.get("mask_token"), "[MASK]", "<mask>", settings.get("eos_token")]
        spelled = [name["content"] if isinstance(name, dict) else name for name in named if name]
        found = next((known for name in spelled if (known := tokenizer.id_of(name)) is not None), None)
        if found is None:
            wrong = "its tokenizer lacks the token that queries are filled up with"
            raise load_failed(self._model, UNSUPPORTED, wrong)
        return found


def _known(tokenizer: TextTokenizer, words: Sequence[str]) -> np.ndarray:
    """Ids of the words that are a token each; the others are as good as words nobody knows."""
    unknown = tokenizer.id_of(tokenizer.unknown) if tokenizer.unknown else None
    ids = [tokenizer.id_of(word) for word in words]
    return np.array(sorted({found for found in ids if found is not None and found != unknown}), np.int32)


def _kept(ids: np.ndarray, side: _Side) -> np.ndarray:
    """Places of the tokens that get a vector, int32."""
    kept = ~np.isin(ids, side.skipped)
    if side.kept_only.size:
        kept &= np.isin(ids, side.kept_only)
    return np.flatnonzero(kept).astype(np.int32)


class MultiVector:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, about: MultiVectorCheckpoint, settled: Any, projections: Any) -> None:
        self.packed: bool = settled.forward.packed
        self._about = about
        self._settled = settled
        self._projections = projections
        self._precision = transformer.dtype_of(settled.model)
        self._drawn: Any = None
        self.bytes = transformer.bytes_of(settled.model, projections)
        self.host_copy = parking.TorchCopy.of(settled.model, projections)
        probe = {"ids": np.zeros(1, np.int32), "seen": 1, "kept": np.zeros(1, np.int32)}
        self.dims = self.forward([probe], None)[0]["rows"].shape[1]

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Rows of a text, float32 (kept tokens, width); for a pair its MaxSim and how many rows its query has."""
        import torch

        texts, query_of = interaction.with_queries(batch)
        with torch.inference_mode():
            rows = self._rows(texts)
            return [
                self._answer(batch[index], rows[index])
                if query is None
                else {"score": interaction.maxsim(rows[query], rows[index]), "count": len(rows[query])}
                for index, query in enumerate(query_of)
            ]

    def _answer(self, inputs: Mapping[str, Any], rows: Any) -> Mapping[str, Any]:
        """Rows, and where anchors are asked for the nearest of each row: `places` and how `near`, (rows, k)."""
        answer: dict[str, Any] = {"precision": self._precision}
        if inputs.get("rows", True):
            answer["rows"] = rows.cpu().numpy()
        if "anchors" in inputs:
            width, k = inputs["anchors"]
            answer["places"], answer["near"] = anchors.nearest(rows, self._directions(width, rows), k)
        return answer

    def _directions(self, width: int, rows: Any) -> Any:
        """On the model's device; of the last shape that was asked for."""
        import torch

        if self._drawn is None or self._drawn.shape != (width, rows.shape[1]):
            self._drawn = torch.from_numpy(anchors.directions(width, rows.shape[1])).to(rows.device)
        return self._drawn

    def _rows(self, texts: Sequence[Mapping[str, Any]]) -> list[Any]:
        import torch
        from torch.nn import functional

        seen = [inputs["seen"] for inputs in texts]
        whole = all(first == len(inputs["ids"]) for first, inputs in zip(seen, texts, strict=True))
        states = self._settled.forward.run([inputs["ids"] for inputs in texts], seen=None if whole else seen)
        tokens = self._projections(states.tokens.float())
        if self._about.normalize:
            tokens = functional.normalize(tokens, dim=-1)
        parts = dict(zip(states.order.tolist(), torch.split(tokens, states.lengths.tolist()), strict=True))
        return [
            parts[index][torch.from_numpy(inputs["kept"].astype(np.int64)).to(tokens.device)]
            for index, inputs in enumerate(texts)
        ]

    def facts(self) -> Mapping[str, Any]:
        expansion = self._about.expansion
        return {
            "architecture": type(self._settled.model).__name__,
            "dims": self.dims,
            "dtype": self._precision,
            "normalize": self._about.normalize,
            "max_tokens": self._about.document.max_tokens,
            "query_tokens": self._about.query.max_tokens,
            "queries_filled_to": expansion.length if expansion else None,
            "packed": self.packed,
            "padded_because": self._settled.why,
        }


def warm() -> None:
    import workers.layers.probe  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> MultiVectorPreparer:
    return MultiVectorPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    """In the dtype that `load` will use; projections are float32 everywhere."""
    about = multivector.read(spec, transformer.needed(spec, folder))
    own = [each.folder for each in about.projections if each.folder != about.text.folder]
    heads = sum(files.count_numbers(inside) for inside in own)
    return transformer.estimate_bytes(spec, about.text.folder, device) + heads * 4


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> MultiVector:
    from workers.layers import probe
    from workers.layers.projecting import read_projections

    about = multivector.read(spec, transformer.needed(spec, folder))
    steps = iter((0.5, 0.8))
    report(0.1)
    settled = probe.settle(
        lambda: transformer.read(spec, about.text.folder, device),
        about.text.config.get("text_config", about.text.config),
        about.text.max_tokens,
        about.text.position_offset,
        lambda: report(next(steps, 0.8)),
    )
    model = MultiVector(about, settled, read_projections(spec, about.projections).to(settled.model.device))
    if model.dims != spec.dims.get("multivector", model.dims):
        wrong = f"its entry says {spec.dims['multivector']} dimensions, it gives {model.dims}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model
