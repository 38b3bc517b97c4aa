"""Sparse text encoders: a weight for each word of the vocabulary that a text is about.

SPLADE (Formal et al., 2021, https://arxiv.org/abs/2107.05720): the masked-language head says at every token which words
would fit; the pooled log(1 + relu) of that is the text's vector. Models whose queries need no forward (a `Router` with
a `SparseStaticEmbedding`) weigh the words that a query has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import parking, transformer, vectors
from workers.layers.sparse import SparseCheckpoint, read_checkpoint
from workers.layers.texts import TextReader, by_chunk
from workers.weights.failures import UNSUPPORTED, load_failed


class SparsePreparer:
    """`key` stays empty: queries without a forward may share one with texts that need it."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._about = read_checkpoint(spec, folder)
        self._reader = TextReader(spec.model, self._about.text)

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = EncodeOptions.from_wire(payload.options)
        _check(wanted, self._model)
        prepared = self._reader.read(payload)
        if wanted.is_query and self._about.static is not None:
            return [parts if isinstance(parts, ShoalError) else list(map(self._words, parts)) for parts in prepared]
        return prepared

    def _words(self, part: Prepared) -> Prepared:
        """The words of a query: no special tokens, each once, at the cost of next to nothing."""
        words = np.setdiff1d(part.inputs["ids"], self._reader.tokenizer.specials)
        return replace(part, inputs={"words": words}, cost=1)

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        dtype = EncodeOptions.from_wire(options).output_dtype
        return by_chunk(
            outputs, parts, lambda output, _: {"sparse": vectors.finish_sparse(self._model, output["sparse"], dtype)}
        )


def _check(wanted: EncodeOptions, model: str) -> None:
    if wanted.output_types != ("sparse",):
        raise InvalidInput(f"model {model!r} gives sparse vectors only", param="options.output_types")
    if wanted.normalize:
        raise InvalidInput(f"model {model!r} gives weights, which are not normalised", param="options.normalize")


class SparseEncoder:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(
        self, about: SparseCheckpoint, settled: Any, head: Any, modules: Sequence[Any], static: np.ndarray | None
    ) -> None:
        self.packed: bool = settled.forward.packed
        self._about = about
        self._settled = settled
        self._head = head
        self._static = static
        self.bytes = transformer.bytes_of(*modules) + (0 if static is None else static.nbytes)
        self.host_copy = parking.TorchCopy.of(*modules)
        self.dims = self.forward([{"ids": np.zeros(1, np.int32)}], None)[0]["sparse"]["dims"]

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        texts = [index for index, inputs in enumerate(batch) if "ids" in inputs]
        vectors = dict(zip(texts, self._vectors([batch[index]["ids"] for index in texts]), strict=True))
        return [
            {"sparse": vectors[index] if index in vectors else self._weigh(inputs["words"])}
            for index, inputs in enumerate(batch)
        ]

    def _vectors(self, texts: Sequence[np.ndarray]) -> list[dict[str, Any]]:
        import torch

        if not texts:
            return []
        with torch.inference_mode():
            states = self._settled.forward.run(texts)
            rows = self._head.pool(states.tokens, states.lengths)
            found = [_nonzero(row) for row in rows]
        ordered = dict(zip(states.order, found, strict=True))
        return [ordered[index] for index in range(len(texts))]

    def _weigh(self, words: np.ndarray) -> dict[str, Any]:
        assert self._static is not None, "only such models are given words"
        values = self._static[words]
        kept = values != 0
        return {"indices": words[kept].astype(np.int32), "values": values[kept], "dims": len(self._static)}

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._settled.model).__name__,
            "dims": self.dims,
            "dtype": transformer.dtype_of(self._settled.model),
            "pooling": self._about.pooling,
            "static_queries": self._static is not None,
            "max_tokens": self._about.text.max_tokens,
            "packed": self.packed,
            "padded_because": self._settled.why,
        }


def _nonzero(row: Any) -> dict[str, Any]:
    indices = row.nonzero()[:, 0]
    values = row[indices].cpu().numpy()
    return {"indices": indices.int().cpu().numpy(), "values": values, "dims": len(row)}


def warm() -> None:
    import workers.layers.probe  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> SparsePreparer:
    return SparsePreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    about = read_checkpoint(spec, transformer.needed(spec, folder))
    return transformer.estimate_bytes(spec, about.text.folder, device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> SparseEncoder:
    from workers.layers import probe
    from workers.layers.heads import Head
    from workers.layers.masked_head import MaskedHead

    about = read_checkpoint(spec, transformer.needed(spec, folder))
    heads: list[Head] = []

    def read() -> Any:
        heads[:] = [Head(transformer.read(spec, about.text.folder, device, auto="AutoModelForMaskedLM"))]
        return heads[0].encoder

    steps = iter((0.5, 0.8))
    report(0.1)
    settled = probe.settle(
        read, about.text.config, about.text.max_tokens, about.text.position_offset, lambda: report(next(steps, 0.8))
    )
    pooled = MaskedHead(heads[0], about.pooling, about.twice)
    modules = settled.model, heads[0].model
    model = SparseEncoder(about, settled, pooled, modules, about.read_static(spec.model))
    if model.dims != spec.dims.get("sparse", model.dims):
        wrong = f"its entry says {spec.dims['sparse']} dimensions, it gives {model.dims}"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model
