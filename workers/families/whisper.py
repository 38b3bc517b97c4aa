"""Whisper: speech as text, in its own language or translated to English, with timestamps where they are asked for.

Sound longer than the model's window (30 s) is cut where it is quietest, and each piece is a window of its own; so
windows of one recording share a forward with those of others, whatever their languages, tasks and prompts.
"""

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
from workers.layers.hearing import Listener, Marks
from workers.layers.pauses import cuts
from workers.weights import files
from workers.weights.failures import CORRUPT, UNSUPPORTED, load_failed

OPTIONS = frozenset({"language", "task", "timestamps", "instruction", "max_new_tokens"})
TASKS = ("transcribe", "translate")
MODEL_TYPE = "whisper"

_POSITION_MS = 20  # what one timestamp stands for


class WhisperPreparer:
    """Sound in, text out."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._model = spec.model
        self._config, self._marks = _read(spec, folder)
        self._recipe = mel.read(spec.model, folder)
        self._positions = int(self._config["max_source_positions"])
        self._room = int(self._config["max_target_positions"])
        if (self._recipe.bins, self._recipe.frames) != (int(self._config["num_mel_bins"]), 2 * self._positions):
            raise load_failed(
                spec.model, UNSUPPORTED, "its feature extractor makes windows of another shape than it reads"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing narrower
            raise load_failed(spec.model, CORRUPT, "its file tokenizer.json is missing or damaged") from error
        self._tokenizer.encode_special_tokens = True  # in a prompt they are text, and order nothing

    def prepare(self, payload: Payload) -> list[Parts | ShoalError]:
        wanted = ExtractOptions.from_wire(payload.options)
        refuse_unread(payload.options, OPTIONS, self._model)
        asked = self._asked(wanted)
        return [self._prepare(item, asked) for item in payload.items]

    def _asked(self, wanted: ExtractOptions) -> dict[str, Any]:
        """What all windows of a call have in common."""
        language, task = self._language(wanted.language), self._task(wanted.task)
        prompt = self._prompt(wanted.instruction)
        room = self._room - len(prompt) - len(("start", "language", "task", "timestamps"))
        most = room if wanted.max_new_tokens is None else min(wanted.max_new_tokens, room)
        return {"language": language, "task": task, "prompt": prompt, "timed": bool(wanted.timestamps), "most": most}

    def _language(self, code: str | None) -> int | None:
        known = self._marks.languages
        if code is None or (not known and code.lower() == "en"):
            return None
        if code.lower() not in known:
            there = ", ".join(sorted(known)) or "en"
            raise InvalidInput(
                f"model {self._model!r} has no language {code!r}; it has: {there}", param="options.language"
            )
        return known[code.lower()]

    def _task(self, name: str | None) -> int | None:
        name = TASKS[0] if name is None else name
        if name not in TASKS:
            raise InvalidInput(f"task must be one of {', '.join(TASKS)}, not {name!r}", param="options.task")
        if name not in self._marks.tasks and name != TASKS[0]:
            raise InvalidInput(
                f"model {self._model!r} reads English alone and does not translate", param="options.task"
            )
        return self._marks.tasks.get(name)

    def _prompt(self, text: str | None) -> np.ndarray:
        """Its mark and its ids, int32."""
        if text is None or not text.strip():
            return np.zeros(0, np.int32)
        ids = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False).ids
        most = self._room // 2 - 1
        if len(ids) > most:
            wrong = (
                f"the instruction has {len(ids)} tokens; model {self._model!r} reads at most {most} before it listens"
            )
            raise InvalidInput(wrong, param="options.instruction")
        return np.array([self._marks.prompt, *ids], np.int32)

    def _prepare(self, item: Mapping[str, Any], asked: Mapping[str, Any]) -> Parts | ShoalError:
        if "audio" not in item:
            return InvalidInput(f"model {self._model!r} reads audio, and the item has none", param="audio")
        try:
            samples = audio.read(item["audio"], self._recipe.rate)
        except InvalidInput as error:
            return error
        edges = [*cuts(samples, self._recipe.samples, self._recipe.rate), len(samples)]
        return [
            self._window(samples[start:end], start, asked) for start, end in zip([0, *edges[:-1]], edges, strict=True)
        ]

    def _window(self, samples: np.ndarray, start: int, asked: Mapping[str, Any]) -> Prepared:
        frames = -(-len(samples) // self._recipe.hop)
        inputs = {"features": self._recipe.apply(samples), "frames": frames, **asked}
        begin, end = (1000 * at // self._recipe.rate for at in (start, start + len(samples)))
        return Prepared(inputs, self._positions, units={"audio_ms": end - begin}, about=(begin, end))

    def finish(self, outputs: Sequence[Mapping[str, Any]], parts: Parts, options: Mapping[str, Any]) -> dict[str, Any]:
        if not all(output["finite"] for output in outputs):
            raise NonFiniteOutput(f"model {self._model!r} gave scores of its next token that are no numbers")
        windows = [(output, *part.about) for output, part in zip(outputs, parts, strict=True)]
        data: dict[str, Any] = {
            "transcript": "".join(self._spell(output["ids"].tolist()) for output, *_ in windows).strip(),
            "language": self._spoken(windows),
            "duration_ms": windows[-1][2],
        }
        if options.get("timestamps"):
            data["segments"] = [segment for window in windows for segment in self._segments(*window)]
        return {"data": data, "truncated": not all(output["ended"] for output in outputs)}

    def _spoken(self, windows: Sequence[tuple[Mapping[str, Any], int, int]]) -> str:
        """The language of most of the time."""
        codes = {mark: code for code, mark in self._marks.languages.items()}
        spans: dict[str, int] = {}
        for output, begin, end in windows:
            code = codes.get(output["language"], "en")
            spans[code] = spans.get(code, 0) + end - begin
        return max(spans, key=lambda code: spans[code])

    def _segments(self, output: Mapping[str, Any], begin: int, end: int) -> Iterator[dict[str, Any]]:
        """Stretches between timestamps; what has no end reaches to the window's."""
        words: list[int] = []
        opened, first = begin, self._marks.timestamps
        for token in [*output["ids"].tolist(), None]:
            if token is not None and token < first:
                words.append(token)
                continue
            at = end if token is None else min(end, begin + (token - first) * _POSITION_MS)
            text = self._spell(words).strip()
            if text:
                told = {"no_speech": output["silence"], "avg_logprob": output["chance"]}
                yield {"start_ms": opened, "end_ms": max(at, opened), "text": text, "tokens": words, **told}
            opened, words = at, []

    def _spell(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode([token for token in ids if token < self._marks.end])
        return text


class Whisper:
    """The model as loaded. `forward` is called by one thread at a time."""

    packed = True  # every window has one size

    def __init__(self, spec: ModelSpec, folder: Path, device: str) -> None:
        _, marks = _read(spec, folder)
        self._model = transformer.read(spec, folder, device, auto="AutoModelForSpeechSeq2Seq", unused=())
        self._listener = Listener(self._model, marks)
        self.bytes = transformer.bytes_of(self._model)
        self.host_copy = parking.TorchCopy.of(self._model)
        self._languages = len(marks.languages)

    def forward(self, batch: Sequence[Mapping[str, Any]], key: Any) -> list[Mapping[str, Any]]:
        return self._listener.hear(batch)

    def facts(self) -> Mapping[str, Any]:
        dtype = transformer.dtype_of(self._model)
        return {"architecture": type(self._model).__name__, "dtype": dtype, "languages": self._languages}


def _read(spec: ModelSpec, folder: Path) -> tuple[Mapping[str, Any], Marks]:
    """The config, and the marks of the generation config. Raises ModelLoadFailed."""
    for name in spec.load:
        if name != "dtype":
            raise load_failed(spec.model, UNSUPPORTED, f"its entry's load.{name} is unknown; there are: dtype")
    config = read_json(spec.model, folder / "config.json", {})
    if config.get("model_type") != MODEL_TYPE:
        raise load_failed(spec.model, UNSUPPORTED, f"it is {config.get('model_type')!r}, not {MODEL_TYPE!r}")
    if not files.shards(folder):
        raise load_failed(spec.model, UNSUPPORTED, "its folder has no weights as safetensors; pickles are not read")
    said = read_json(spec.model, folder / "generation_config.json", {})
    try:
        return config, _marks(said)
    except KeyError as error:
        wrong = f"its file generation_config.json says no {error.args[0]}"
        raise load_failed(spec.model, UNSUPPORTED, wrong) from None


def _marks(said: Mapping[str, Any]) -> Marks:
    is_multilingual = said.get("is_multilingual", "lang_to_id" in said)
    no_timestamps = int(said["no_timestamps_token_id"])
    end = said["eos_token_id"]
    return Marks(
        start=int(said["decoder_start_token_id"]),
        end=int(end[0] if isinstance(end, list) else end),
        timestamps=no_timestamps + 1,
        silence=no_timestamps - 1,
        languages={name.strip("<|>"): int(mark) for name, mark in said["lang_to_id"].items()}
        if is_multilingual
        else {},
        tasks={name: int(mark) for name, mark in said["task_to_id"].items()} if is_multilingual else {},
        prompt=int(said.get("prev_sot_token_id", no_timestamps - 2)),
        never=tuple(said.get("suppress_tokens") or ()),
        never_first=tuple(said.get("begin_suppress_tokens") or ()),
        latest_start=said.get("max_initial_timestamp_index"),
    )


def warm() -> None:
    import transformers  # noqa: F401  # and with it torch


def preparer(spec: ModelSpec, folder: Path | None) -> WhisperPreparer:
    return WhisperPreparer(spec, transformer.needed(spec, folder))


def estimate_bytes(spec: ModelSpec, folder: Path | None, device: str) -> int:
    return transformer.estimate_bytes(spec, transformer.needed(spec, folder), device)


def load(spec: ModelSpec, folder: Path | None, device: str, report: Callable[[float], None]) -> Whisper:
    model = Whisper(spec, transformer.needed(spec, folder), device)
    report(1.0)
    return model
