"""BGE-M3: a dense vector, a weight per word and a vector per token, all from one forward.

Chen et al., 2024, https://arxiv.org/abs/2402.03216, as FlagEmbedding computes them: the first state for `dense`, a
linear map of every state for the words' weights, another for the vectors by token, which leave out the first. Scores
are the three ways of comparing, weighed together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import EncodeOptions, ScoreOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared
from workers.layers import checkpoint, interaction, muvera, parking, transformer, vectors
from workers.layers.checkpoint import Checkpoint, read_json
from workers.layers.texts import TextReader, by_chunk
from workers.weights import files
from workers.weights.failures import UNSUPPORTED, load_failed

OUTPUTS = ("dense", "sparse", "multivector")
HEADS = {"sparse": "sparse_linear", "multivector": "colbert_linear"}  # and their files, as safetensors
WEIGHTS = {"dense": 0.4, "sparse": 0.2, "multivector": 0.4}  # of a score, as the authors advise
_NO_WORDS = ("cls_token", "eos_token", "pad_token", "unk_token")


def _read(spec: ModelSpec, folder: Path) -> Checkpoint:
    about = checkpoint.read(spec, folder, own=(), options=("score_weights",))
    for head in HEADS.values():
        if not (about.folder / f"{head}.safetensors").is_file():
            raise load_failed(spec.model, UNSUPPORTED, f"its folder has no {head}.safetensors")
    return about


class M3Preparer:
    """`key` stays empty: what a text's outputs are decides no more than which small maps follow the forward."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        about = _read(spec, folder)
        self._reader = TextReader(spec.model, about)
        self._vocabulary = int(self._reader.tokenizer.vocabulary or 0)
        self._no_words = self._special(about)
        self._weights = _weights(spec)
        self._muvera = muvera.Encodings()

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        if payload.query is not None:
            return self._prepare_pairs(payload)
        wanted = EncodeOptions.from_wire(payload.options)
        if wanted.normalize is False:
            raise InvalidInput(f"model {self._model!r} gives vectors of unit length", param="options.normalize")
        if wanted.smve is not None:
            raise InvalidInput(f"model {self._model!r} has sparse vectors of its own, of words", param="options.smve")
        outputs = [name for name in OUTPUTS if name in wanted.output_types]
        if wanted.muvera is not None and "dense" in outputs:
            outputs[0] = "multivector"
        return self._read(payload, tuple(dict.fromkeys(outputs)))

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        if "query" in parts[0].inputs:
            return {"score": self._score(outputs[0], ScoreOptions.from_wire(options))}
        wanted = EncodeOptions.from_wire(options)
        makers = {"dense": self._dense, "sparse": self._sparse, "multivector": self._by_token}
        return by_chunk(
            outputs,
            parts,
            lambda output, part: {name: makers[name](output, part, wanted) for name in wanted.output_types},
        )

    def _dense(self, output: Mapping[str, Any], part: Prepared, wanted: EncodeOptions) -> dict[str, Any]:
        if wanted.muvera is None:
            vector = output["dense"]
        else:
            shape = muvera.Shape.from_wire(wanted.muvera)
            vector = self._muvera.encode(output["multivector"], shape, is_query=bool(wanted.is_query))
        return vectors.finish(
            self._model,
            vector,
            precision=output["precision"],
            dimensions=None,
            normalize=wanted.muvera is None or bool(wanted.normalize),
            dtype=wanted.output_dtype,
        )

    def _sparse(self, output: Mapping[str, Any], part: Prepared, wanted: EncodeOptions) -> dict[str, Any]:
        words, values = lexical(part.inputs["ids"], part.inputs["words"], output["sparse"])
        made = {"dims": self._vocabulary, "indices": words, "values": values}
        return vectors.finish_sparse(self._model, made, wanted.output_dtype)

    def _by_token(self, output: Mapping[str, Any], part: Prepared, wanted: EncodeOptions) -> dict[str, Any]:
        rows = output["multivector"]
        return vectors.finish_many(self._model, rows, precision=output["precision"], dtype=wanted.output_dtype)

    def _score(self, output: Mapping[str, Any], wanted: ScoreOptions) -> float:
        """The weighed mean of the three, or its sigmoid."""
        total = sum(self._weights[name] * output[name] for name in self._weights) / sum(self._weights.values())
        if not np.isfinite(total):
            raise NonFiniteOutput(f"model {self._model!r} gave a score that is not finite")
        return float(1 / (1 + np.exp(-total))) if wanted.normalize else float(total)

    def _prepare_pairs(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ScoreOptions.from_wire(payload.options)
        if wanted.instruction is not None:
            raise InvalidInput(f"model {self._model!r} takes no instruction", param="options.instruction")
        options = {"overflow": wanted.overflow}
        outputs = tuple(self._weights)
        [query] = self._read(Payload([payload.query or {}], options), outputs)
        return interaction.with_query(
            interaction.the_query(query), self._read(Payload(payload.items, options), outputs)
        )

    def _read(self, payload: Payload, outputs: tuple[str, ...]) -> list[Parts | ShoalError]:
        read = self._reader.read(payload)
        return [
            found if isinstance(found, ShoalError) else [self._with(part, outputs) for part in found] for found in read
        ]

    def _with(self, part: Prepared, outputs: tuple[str, ...]) -> Prepared:
        ids = part.inputs["ids"]
        words = np.flatnonzero(~np.isin(ids, self._no_words)).astype(np.int32)
        return replace(part, inputs={"ids": ids, "words": words, "outputs": outputs})

    def _special(self, about: Checkpoint) -> np.ndarray:
        """Ids of what is no word."""
        settings = read_json(self._model, about.folder / "tokenizer_config.json", {})
        named = [settings.get(name) for name in _NO_WORDS]
        spelled = [name["content"] if isinstance(name, dict) else name for name in named if name]
        ids = [self._reader.tokenizer.id_of(name) for name in spelled]
        return np.array([found for found in ids if found is not None], np.int32)


def lexical(ids: np.ndarray, places: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The words of a text in ascending order, int32, and the largest weight of each, where that is above 0.

    `weights` are of the tokens at `places`.
    """
    words, found = np.unique(ids[places], return_inverse=True)
    largest = np.zeros(len(words), np.float32)
    np.maximum.at(largest, found, weights)
    return words[largest > 0].astype(np.int32), largest[largest > 0]


def _weights(spec: ModelSpec) -> dict[str, float]:
    """How much each way of comparing counts in a score; those of no weight are not computed."""
    given = spec.load.get("score_weights", WEIGHTS)
    right = isinstance(given, Mapping) and all(
        name in OUTPUTS and isinstance(weight, int | float) and weight >= 0 for name, weight in given.items()
    )
    if not right or not any(given.values()):
        wrong = f"its entry's load.score_weights is not a map of {', '.join(OUTPUTS)} to weights"
        raise load_failed(spec.model, UNSUPPORTED, wrong)
    return {name: float(given[name]) for name in OUTPUTS if given.get(name)}


class M3:
    """The model as loaded. `forward` is called by one thread at a time."""

    def __init__(self, about: Checkpoint, settled: Any, heads: Any) -> None:
        self.packed: bool = settled.forward.packed
        self._about = about
        self._settled = settled
        self._heads = heads  # by output, as a torch ModuleDict; computed in float32
        self._precision = transformer.dtype_of(settled.model)
        self.bytes = transformer.bytes_of(settled.model, heads)
        self.host_copy = parking.TorchCopy.of(settled.model, heads)
        self.dims = {"dense": settled.model.config.hidden_size, "multivector": heads["multivector"].out_features}

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Of a text the `outputs` it wants: dense (width), sparse (its words), multivector (tokens but the first,
        width), float32; of a pair one number by each of them.
        """
        import torch

        texts, query_of = interaction.with_queries(batch)
        with torch.inference_mode():
            made = self._outputs(texts)
            return [
                {**{name: values.cpu().numpy() for name, values in made[index].items()}, "precision": self._precision}
                if query is None
                else _compared(texts[query], made[query], texts[index], made[index])
                for index, query in enumerate(query_of)
            ]

    def _outputs(self, texts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        import torch
        from torch.nn import functional

        states = self._settled.forward.run([inputs["ids"] for inputs in texts])
        lengths = states.lengths.tolist()
        tokens = states.tokens.float()
        wanted = {name for inputs in texts for name in inputs["outputs"]}
        whole: dict[str, Any] = {"dense": tokens}
        if "sparse" in wanted:
            whole["sparse"] = self._heads["sparse"](tokens)[:, 0].relu()
        if "multivector" in wanted:
            whole["multivector"] = functional.normalize(self._heads["multivector"](tokens), dim=-1)
        parts = {name: torch.split(values, lengths) for name, values in whole.items() if name in wanted}
        places = {index: place for place, index in enumerate(states.order.tolist())}
        made = []
        for index, inputs in enumerate(texts):
            own = {name: parts[name][places[index]] for name in inputs["outputs"]}
            if "dense" in own:
                own["dense"] = functional.normalize(own["dense"][0], dim=-1)
            if "sparse" in own:
                own["sparse"] = own["sparse"][torch.from_numpy(inputs["words"].astype(np.int64)).to(tokens.device)]
            if "multivector" in own:
                own["multivector"] = own["multivector"][1:]
            made.append(own)
        return made

    def facts(self) -> Mapping[str, Any]:
        return {
            "architecture": type(self._settled.model).__name__,
            "dims": self.dims,
            "dtype": self._precision,
            "max_tokens": self._about.max_tokens,
            "packed": self.packed,
            "padded_because": self._settled.why,
        }


def _compared(
    query_inputs: Mapping[str, Any], query: Mapping[str, Any], inputs: Mapping[str, Any], text: Mapping[str, Any]
) -> dict[str, float]:
    """By the inner product, by the words that both have, by each of the query's tokens' best similarity."""
    found: dict[str, float] = {}
    if "dense" in query:
        found["dense"] = float(query["dense"] @ text["dense"])
    if "sparse" in query:
        ours, theirs = (
            dict(zip(*(values.tolist() for values in lexical(one["ids"], one["words"], made)), strict=True))
            for one, made in ((query_inputs, query["sparse"].cpu().numpy()), (inputs, text["sparse"].cpu().numpy()))
        )
        found["sparse"] = sum(ours[word] * theirs[word] for word in ours.keys() & theirs.keys())
    if "multivector" in query:
        rows = query["multivector"]
        found["multivector"] = interaction.maxsim(rows, text["multivector"]) / max(len(rows), 1)
    return found


def warm() -> None:
    import workers.layers.probe  # noqa: F401  # and with it torch and transformers


def preparer(spec: ModelSpec, folder: Path | None) -> M3Preparer:
    return M3Preparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    """In the dtype that `load` will use; the heads are float32 everywhere."""
    about = _read(spec, transformer.needed(spec, folder))
    heads = sum(
        int(np.prod(tensor["shape"]))
        for head in HEADS.values()
        for tensor in files.header(about.folder / f"{head}.safetensors").values()
    )
    return transformer.estimate_bytes(spec, about.folder, device) + heads * 4


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> M3:
    from workers.layers import probe

    about = _read(spec, transformer.needed(spec, folder))
    steps = iter((0.5, 0.8))
    report(0.1)
    settled = probe.settle(
        lambda: transformer.read(spec, about.folder, device),
        about.config,
        about.max_tokens,
        about.position_offset,
        lambda: report(next(steps, 0.8)),
    )
    model = M3(about, settled, _read_heads(about).to(settled.model.device))
    for name, width in model.dims.items():
        if width != spec.dims.get(name, width):
            wrong = f"its entry says {spec.dims[name]} dimensions of {name}, it gives {width}"
            raise load_failed(spec.model, UNSUPPORTED, wrong)
    report(1.0)
    return model


def _read_heads(about: Checkpoint) -> Any:
    from safetensors.torch import load_file
    from torch import nn

    heads = nn.ModuleDict()
    for output, head in HEADS.items():
        weights = load_file(about.folder / f"{head}.safetensors")
        rows, columns = weights["weight"].shape
        layer = nn.Linear(columns, rows)
        layer.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        heads[output] = layer
    return heads.eval()
