"""Parakeet: speech as text, by a fast encoder that hears a recording at once (CTC), or word by word behind it (TDT).

Long recordings are cut where they are quiet. Pieces of one forward are filled up to the longest, which the model
leaves out. The language is the model's own affair.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from protocol.errors import InvalidInput, NonFiniteOutput, ShoalError
from protocol.messages import Payload
from protocol.options import ExtractOptions
from protocol.spec import ModelSpec
from workers.families import Parts, Prepared, refuse_unread
from workers.layers import audio, mel, parking, transformer
from workers.layers.checkpoint import read_json
from workers.layers.pauses import cuts
from workers.weights import files
from workers.weights.failures import CORRUPT, UNSUPPORTED, load_failed

OPTIONS = frozenset({"task", "timestamps"})
TASK = "transcribe"  # the only one
# config.json's model_type → the class of transformers
MODEL_TYPES = {"parakeet_ctc": "ParakeetForCTC", "parakeet_rnnt": "ParakeetForRNNT", "parakeet_tdt": "ParakeetForTDT"}
PIECE_S = 120  # at most; attention looks from every frame to every other
_ENDS = (".", "!", "?", "。", "！", "？")


class ParakeetPreparer:
    """Sound in, text out. `key` stays empty."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        config = _read(spec, folder)
        self._recipe = mel.read_levelled(spec.model, folder)
        encoder = config.get("encoder_config") or {}
        if len(self._recipe.filters) != int(encoder.get("num_mel_bins", 80)):
            raise load_failed(spec.model, UNSUPPORTED, "its feature extractor makes other bins than it reads")
        self._shrinks = int(encoder.get("subsampling_factor", 8))
        self._frame_ms = 1000 * self._recipe.hop * self._shrinks // self._recipe.rate
        self._groups = config["model_type"] == "parakeet_ctc"
        self._silent = {
            int(config[name]) for name in ("pad_token_id", "blank_token_id") if config.get(name) is not None
        }
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing narrower
            raise load_failed(spec.model, CORRUPT, "its file tokenizer.json is missing or damaged") from error

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        if wanted.task not in (None, TASK):
            raise InvalidInput(f"model {self._model!r} can {TASK} and nothing else", param="options.task")
        return [self._prepare(item) for item in payload.items]

    def _prepare(self, item: Mapping[str, Any]) -> Parts | ShoalError:
        if "audio" not in item:
            return InvalidInput(f"model {self._model!r} reads audio, and the item has none", param="audio")
        rate = self._recipe.rate
        try:
            samples = audio.read(item["audio"], rate)
        except InvalidInput as error:
            return error
        edges = [*cuts(samples, PIECE_S * rate, rate), len(samples)]
        return [self._piece(samples[start:end], start, end) for start, end in zip([0, *edges[:-1]], edges, strict=True)]

    def _piece(self, samples: np.ndarray, start: int, end: int) -> Prepared:
        begun, ended = (1000 * at // self._recipe.rate for at in (start, end))
        heard = np.pad(samples, (0, max(0, self._recipe.least - len(samples))))
        features = self._recipe.apply(heard)
        cost = -(-len(features) // self._shrinks)
        return Prepared({"features": features}, cost, units={"audio_ms": ended - begun}, about=(begun, ended))

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        if not all(output["finite"] for output in outputs):
            raise NonFiniteOutput(f"model {self._model!r} heard something that is no number")
        pieces = [(self._heard(output), *part.about) for output, part in zip(outputs, parts, strict=True)]
        texts = [self._spell([token for token, _ in heard]) for heard, *_ in pieces]
        data: dict[str, Any] = {
            "transcript": " ".join(text for text in texts if text),
            "duration_ms": parts[-1].about[1],
        }
        if options.get("timestamps"):
            data["segments"] = [segment for piece in pieces for segment in self._segments(*piece)]
        return {"data": data}

    def _heard(self, output: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Tokens and the frames they were said at, without silence: of CTC's, neighbours that are equal are one."""
        said = list(zip(output["ids"].tolist(), output["at"].tolist(), strict=True))
        if self._groups:
            said = [next(group) for _, group in itertools.groupby(said, key=lambda one: one[0])]
        return [(token, at) for token, at in said if token not in self._silent]

    def _segments(self, heard: Sequence[tuple[int, int]], begun: int, ended: int) -> Iterator[dict[str, Any]]:
        """Sentences, as far as the model writes their ends; one is over where the next begins."""
        tokens: list[int] = []
        start = begun
        for index, (token, at) in enumerate(heard):
            if not tokens:
                start = min(begun + at * self._frame_ms, ended)
            tokens.append(token)
            is_last = index + 1 == len(heard)
            text = self._spell(tokens)
            if is_last or text.endswith(_ENDS):
                end = ended if is_last else min(begun + heard[index + 1][1] * self._frame_ms, ended)
                yield {"start_ms": start, "end_ms": max(end, start), "text": text, "tokens": tokens}
                tokens = []

    def _spell(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids))
        return text.strip()


class Parakeet:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = False

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        auto = MODEL_TYPES[_read(spec, folder)["model_type"]]
        self._model = transformer.read(spec, folder, device, auto=auto, unused=())
        self._model.set_attn_implementation("sdpa")  # the plainer one makes NaN of frames that are left out
        self._finite = self._frames = np.zeros(0, np.int64)
        self._model.encoder.register_forward_hook(self._listen)
        self._is_transducer = self._model.config.model_type != "parakeet_ctc"
        # tokens of a frame, and the silence between two
        self._per_frame = self._model.config.max_symbols_per_step + 1 if self._is_transducer else 1
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        """Of each piece its `ids`, int32, those of silence among them, the frames that they were said `at`, and whether
        all that was heard is `finite`.
        """
        import torch

        lengths = np.array([len(inputs["features"]) for inputs in batch])
        most = int(lengths.max())
        stacked = np.stack(
            [np.pad(inputs["features"], ((0, most - len(inputs["features"])), (0, 0))) for inputs in batch]
        )
        mask = torch.from_numpy(np.arange(most)[None, :] < lengths[:, None]).to(self._model.device)
        with torch.inference_mode():
            features = torch.from_numpy(stacked).to(self._model.device, self._model.dtype)
            if self._is_transducer:
                heard = -(-most // self._model.config.encoder_config.subsampling_factor) + 1
                found = self._model.generate(
                    input_features=features, attention_mask=mask, max_new_tokens=heard * self._per_frame
                )
                rows = self._cut(*(values.cpu().numpy() for values in (found.sequences, found.durations)))
            else:
                found = self._model.generate(input_features=features, attention_mask=mask).cpu().numpy()
                rows = [(row, np.arange(len(row))) for row in found]
        return [
            {"ids": ids.astype(np.int32), "at": at.astype(np.int32), "finite": bool(good)}
            for (ids, at), good in zip(rows, self._finite, strict=True)
        ]

    def _cut(self, ids: np.ndarray, durations: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """What each row said of its own frames: the library goes on with all rows until the longest has ended."""
        at = np.cumsum(durations, 1) - durations  # the frame at which each token was said
        places = np.arange(ids.shape[1])[None, :]
        own = (at < self._frames[:, None]) & (places <= (self._frames[:, None] + 1) * self._per_frame)
        own[:, 0] = False  # the token that a decoder starts with
        return [(row[kept], frames[kept]) for row, frames, kept in zip(ids, at, own, strict=True)]

    def _listen(self, module: Any, asked: Any, found: Any) -> None:
        """What comes out of the encoder decides everything, and greedy choices would hide that it is no number."""
        there = found.attention_mask.bool()
        self._finite = (found.last_hidden_state.isfinite().all(2) | ~there).all(1).cpu().numpy()
        self._frames = there.sum(1).cpu().numpy()

    def facts(self) -> Mapping[str, Any]:
        return {"architecture": type(self._model).__name__, "dtype": transformer.dtype_of(self._model)}


def _read(spec: ModelSpec, folder: Path) -> Mapping[str, Any]:
    """The config. Raises ModelLoadFailed."""
    for name in spec.load:
        if name != "dtype":
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: dtype")
    config: Mapping[str, Any] = read_json(spec.model, folder / "config.json", {})
    if config.get("model_type") not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise load_failed(spec.model, UNSUPPORTED, f"it is {config.get('model_type')!r}; this family reads {known}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    return config


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> ParakeetPreparer:
    return ParakeetPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Parakeet:
    model = Parakeet(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
